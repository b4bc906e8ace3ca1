"""A gRPC proxy that forwards every call and records its messages."""

import threading
from concurrent import futures

import grpc


class WireTap:
    """Owns the server, on a free port, and the channel to `address`. Messages stay bytes."""

    def __init__(self, address):
        self._channel = grpc.insecure_channel(address)
        self._lock = threading.Lock()
        self._calls = []
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
        self._server.add_generic_rpc_handlers((_Everything(self._pass_on),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.address = f"127.0.0.1:{port}"

    def calls(self, method):
        """(request, replies) of each call so far whose path ends with `method`."""
        with self._lock:
            return [
                (request, replies)
                for path, request, replies in self._calls
                if path.endswith("/" + method)
            ]

    def forget(self):
        with self._lock:
            self._calls = []

    def close(self):
        self._server.stop(None).wait()
        self._channel.close()

    def _pass_on(self, path, request, context):
        replies = []
        with self._lock:
            self._calls.append((path, request, replies))
        # Without deserialisation, a single reply is a stream of one.
        call = self._channel.unary_stream(path)(request)
        context.add_callback(call.cancel)
        try:
            for reply in call:
                replies.append(reply)
                yield reply
        except grpc.RpcError as error:
            context.set_trailing_metadata(error.trailing_metadata() or ())
            context.abort(error.code(), error.details())


class _Everything(grpc.GenericRpcHandler):
    def __init__(self, behaviour):
        self._behaviour = behaviour

    def service(self, handler_call_details):
        path = handler_call_details.method
        return grpc.unary_stream_rpc_method_handler(
            lambda request, context: self._behaviour(path, request, context)
        )
