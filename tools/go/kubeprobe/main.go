// kubeprobe HOST PORT SERVICE [TIMEOUT] runs a probe with the kubelet's own code, and exits 0 if
// the kubelet would count it as a success.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"k8s.io/kubernetes/pkg/probe"
	"k8s.io/kubernetes/pkg/probe/grpc"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "kubeprobe HOST PORT SERVICE [TIMEOUT]")
		os.Exit(2)
	}
	port, err := strconv.Atoi(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	// The kubelet's default timeoutSeconds.
	timeout := time.Second
	if len(os.Args) > 4 {
		if timeout, err = time.ParseDuration(os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	began := time.Now()
	result, output, err := grpc.New().Probe(os.Args[1], os.Args[3], port, timeout)
	fmt.Printf("%s in %v: %s err=%v\n", result, time.Since(began).Round(time.Millisecond), output, err)
	if result != probe.Success && result != probe.Warning {
		os.Exit(1)
	}
}
