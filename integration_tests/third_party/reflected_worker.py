"""A worker's calls as server reflection describes them; no generated code."""

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from worker_under_test import PATIENCE_S


class ReflectedWorker:
    """Services, messages and methods, looked up over a channel that its owner closes."""

    def __init__(self, channel):
        self._channel = channel
        self.reflection = ProtoReflectionDescriptorDatabase(channel)
        self.pool = DescriptorPool(self.reflection)

    def message(self, full_name, **fields):
        return GetMessageClass(self.pool.FindMessageTypeByName(full_name))(**fields)

    def call(self, service, method, /, **fields):
        """A response, or the iterator of a stream of them."""
        descriptor = self.pool.FindServiceByName(service).FindMethodByName(method)
        request = GetMessageClass(descriptor.input_type)
        response = GetMessageClass(descriptor.output_type)
        kind = (
            self._channel.unary_stream if descriptor.server_streaming else self._channel.unary_unary
        )
        rpc = kind(
            f"/{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return rpc(request(**fields), timeout=PATIENCE_S)

    def generate(self, **fields):
        """The text and the token ids that orcd.v1 gives."""
        text, ids = "", []
        for event in self.call("orcd.v1.Worker", "Generate", **fields):
            text += event.delta.text
            ids += event.delta.token_ids
        return text, ids

    def status(self):
        return self.call("orcd.v1.Worker", "Health").status


def reflected(address):
    """The worker at `address`, and the channel to be closed."""
    channel = grpc.insecure_channel(address)
    return ReflectedWorker(channel), channel
