// fakegpu FOLDER advertises one nvidia.com/gpu to the kubelet whose device-plugins folder this is.
// SIGUSR1 makes the GPU unhealthy, and healthy again.
package main

import (
	"context"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	dp "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type P struct {
	dp.UnimplementedDevicePluginServer
	c chan string
}

func (p *P) GetDevicePluginOptions(context.Context, *dp.Empty) (*dp.DevicePluginOptions, error) {
	return &dp.DevicePluginOptions{}, nil
}
func (p *P) ListAndWatch(_ *dp.Empty, s dp.DevicePlugin_ListAndWatchServer) error {
	h := dp.Healthy
	for {
		if err := s.Send(&dp.ListAndWatchResponse{Devices: []*dp.Device{{ID: "GPU-0", Health: h}}}); err != nil {
			return err
		}
		h = <-p.c
	}
}
func (p *P) Allocate(_ context.Context, r *dp.AllocateRequest) (*dp.AllocateResponse, error) {
	o := &dp.AllocateResponse{}
	for range r.ContainerRequests {
		o.ContainerResponses = append(o.ContainerResponses, &dp.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-0"}})
	}
	return o, nil
}
func main() {
	dir := os.Args[1] // <kubelet root-dir>/device-plugins
	sock := filepath.Join(dir, "fakegpu.sock")
	os.Remove(sock)
	l, err := net.Listen("unix", sock)
	if err != nil {
		panic(err)
	}
	p := &P{c: make(chan string)}
	s := grpc.NewServer()
	dp.RegisterDevicePluginServer(s, p)
	go s.Serve(l)
	c, _ := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if _, err = dp.NewRegistrationClient(c).Register(context.Background(), &dp.RegisterRequest{Version: dp.Version, Endpoint: "fakegpu.sock", ResourceName: "nvidia.com/gpu"}); err != nil {
		panic(err)
	}
	u := make(chan os.Signal, 1)
	signal.Notify(u, syscall.SIGUSR1)
	for h := dp.Unhealthy; ; {
		<-u
		p.c <- h
		if h == dp.Unhealthy {
			h = dp.Healthy
		} else {
			h = dp.Unhealthy
		}
	}
}
