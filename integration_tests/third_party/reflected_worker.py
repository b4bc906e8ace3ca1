"""Calls a worker through server reflection, without generated code."""

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from worker_under_test import PATIENCE_S


class ReflectedWorker:
    """Services, messages and methods, looked up over a channel that its owner closes."""

    def __init__(self, channel, patience_s):
        self._channel = channel
        self._patience_s = patience_s
        self.reflection = ProtoReflectionDescriptorDatabase(channel)
        self.pool = DescriptorPool(self.reflection)

    def message(self, full_name, **fields):
        return GetMessageClass(self.pool.FindMessageTypeByName(full_name))(**fields)

    def call(self, service, method, /, **fields):
        """Returns the response, or an iterator of streamed responses."""
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
        return rpc(request(**fields), timeout=self._patience_s)

    def generate(self, **fields):
        """Generates with orcd.v1 and returns the text and the token ids."""
        text, ids = "", []
        for event in self.call("orcd.v1.Worker", "Generate", **fields):
            text += event.delta.text
            ids += event.delta.token_ids
        return text, ids

    def status(self):
        return self.call("orcd.v1.Worker", "Health").status


def reflected(address, patience_s=PATIENCE_S):
    """Returns the worker at `address`, whose calls may take `patience_s`, and the channel for the
    caller to close."""
    channel = grpc.insecure_channel(address)
    return ReflectedWorker(channel, patience_s), channel
