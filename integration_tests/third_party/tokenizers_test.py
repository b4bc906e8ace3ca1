"""Loads the tokenizer that a worker provides into the public `tokenizers` library and into Jinja.

    tokenizers_test.py BIN_DIR SOURCE_DIR

The library must give the same ids as the worker's own tokenizer: on random text with special tokens
in it, for conversations, and, if ORCD_ORACLE_DIR names the results of a third tokenizer, on each of
those. The vocabularies are the made-up one, the oracle's, and the real model's if it is in the
model cache.
"""

import hashlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import random
import sys
import unittest
import zipfile

import grpc
import tokenizers
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from worker_under_test import NANO, PATIENCE_S, WorkerUnderTest

BIN_DIR = None
SOURCE_DIR = None
REAL_MODEL = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
CHUNK_BYTES = 64 << 10
TEXTS = 400
# Strings that split words, and strings that look as if they did.
PIECES = [" ", "  ", "\n", "\r\n", "\t", "'", "'s", "'LL", "'\u017f", "a", "Bc", "\u00e9", "e\u0301"]
PIECES += ["\u6f22", "\U0001f600", "1", "\u0663", "\u00a0", "\u3000", "\u200d", "\u0085", "!", "--"]
PIECES += ["x" * 90, "<|", "|>", "<tool", "_call>", "\U0001d2c0", "\u1c89", "\u0000", "\ufffd"]


def generator():
    """Imports tools/generate_chat_template_goldens, for its conversations and its Jinja."""
    path = str(SOURCE_DIR / "tools/generate_chat_template_goldens")
    loader = importlib.machinery.SourceFileLoader("goldens", path)
    sys.dont_write_bytecode = True
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("goldens", loader))
    loader.exec_module(module)
    return module


class TokenizersTest(unittest.TestCase):
    def start(self, vocab_from=None):
        self.worker = WorkerUnderTest(BIN_DIR, vocab_from=vocab_from)
        self.addCleanup(self.worker.close)
        self.channel = grpc.insecure_channel(self.worker.address)
        self.addCleanup(self.channel.close)
        self.pool = DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))
        list(self.call("orcd.v1.Worker", "Load", model=NANO))
        bundle = self.fetch()
        files = zipfile.ZipFile(io.BytesIO(bundle))
        self.assertEqual(files.namelist(), ["tokenizer.json", "tokenizer_config.json"])
        self.config = json.loads(files.read("tokenizer_config.json"))
        self.library = tokenizers.Tokenizer.from_str(files.read("tokenizer.json").decode())

    def call(self, service, method, **fields):
        descriptor = self.pool.FindServiceByName(service).FindMethodByName(method)
        request = GetMessageClass(descriptor.input_type)
        response = GetMessageClass(descriptor.output_type)
        kind = (
            self.channel.unary_stream if descriptor.server_streaming else self.channel.unary_unary
        )
        rpc = kind(
            f"/{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return rpc(request(**fields), timeout=PATIENCE_S)

    def fetch(self):
        """Fetches the zip and checks it as a gateway does."""
        chunks = list(self.call("vllm.grpc.engine.VllmEngine", "GetTokenizer"))
        self.assertEqual({len(chunk.data) for chunk in chunks[:-1]} - {CHUNK_BYTES}, set())
        self.assertEqual([chunk.sha256 for chunk in chunks[:-1]], [""] * (len(chunks) - 1))
        bundle = b"".join(chunk.data for chunk in chunks)
        self.assertEqual(hashlib.sha256(bundle).hexdigest(), chunks[-1].sha256)
        return bundle

    def ours(self, text, parse_special=True):
        answer = self.call(
            "orcd.v1.Worker", "Tokenize", text={"text": text, "parse_special": parse_special}
        )
        return list(answer.token_ids)

    def library_ids(self, text):
        return self.library.encode(text, add_special_tokens=False).ids

    def check_random_texts(self):
        special = [token["content"] for token in self.config["added_tokens_decoder"].values()]
        self.assertGreater(len(special), 10)
        pick = random.Random(7)

        def character():
            code = pick.randrange(0x110000)
            return chr(code) if not 0xD800 <= code < 0xE000 else "?"

        for _ in range(TEXTS):
            pieces = [
                pick.choice(PIECES + special) if pick.random() < 0.7 else character()
                for _ in range(pick.randrange(1, 120))
            ]
            text = "".join(pieces)
            ids = self.library_ids(text)
            self.assertEqual(ids, self.ours(text), ascii(text))
            self.assertEqual(self.library.decode(ids, skip_special_tokens=False), text)

    def check_conversations(self):
        goldens = generator()
        template = self.config["chat_template"]
        for name, (messages, tools, generate) in (goldens.PLAIN | goldens.TOOLS).items():
            prompt = goldens.render(template, messages, tools, generate)
            chat = {
                "messages": [
                    {
                        "role": f"CHAT_ROLE_{role.upper()}",
                        "content": content,
                        "tool_calls": [
                            {"name": tool, "arguments_json": arguments}
                            for tool, arguments in calls
                        ],
                    }
                    for role, content, calls in messages
                ],
                "tools_json": tools,
                "add_generation_prompt": generate,
            }
            with self.subTest(conversation=name):
                ours = list(self.call("orcd.v1.Worker", "Tokenize", chat=chat).token_ids)
                if name == "control_token_in_content":
                    self.assertEqual(self.library.decode(ours, skip_special_tokens=False), prompt)
                    self.assertNotEqual(ours, self.library_ids(prompt), "a user ends no turn here")
                else:
                    self.assertEqual(ours, self.library_ids(prompt))

    def check_oracle(self, folder):
        separator = "\n__ggml_vocab_test__\n"
        texts = (folder / "cases.inp").read_bytes().decode().split(separator)
        expected = (folder / "cases.out").read_text().split("\n")[: len(texts)]
        self.assertEqual(len(expected), len(texts))
        self.assertGreater(len(texts), 40)
        for text, ids in zip(texts, expected):
            ids = [int(number) for number in ids.split()]
            self.assertEqual(self.library_ids(text), ids, ascii(text))
            self.assertEqual(self.ours(text, parse_special=False), ids, ascii(text))

    def test_a_made_up_vocabulary(self):
        self.start()
        self.check_random_texts()
        self.check_conversations()
        self.assertEqual(self.config["eos_token"], "<|im_end|>")

    def test_the_same_model_gives_the_same_bytes(self):
        self.start()
        first = self.fetch()
        self.call("orcd.v1.Worker", "Unload")
        with self.assertRaises(grpc.RpcError) as caught:
            self.fetch()
        self.assertEqual(caught.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        list(self.call("orcd.v1.Worker", "Load", model=NANO))
        self.assertEqual(self.fetch(), first)

    def test_the_oracles_vocabulary(self):
        if "ORCD_ORACLE_DIR" not in os.environ:
            self.skipTest("ORCD_ORACLE_DIR is not set")
        folder = pathlib.Path(os.environ["ORCD_ORACLE_DIR"]) / "tokenizer"
        self.start(folder / "qwen2.5-vocab.gguf")
        self.check_oracle(folder)
        self.check_random_texts()
        self.check_conversations()

    def test_the_real_models_vocabulary(self):
        cache = os.environ.get("ORCD_MODEL_CACHE") or pathlib.Path.home() / ".cache/orcd/models"
        model = pathlib.Path(cache) / REAL_MODEL
        if not model.exists():
            self.skipTest(f"{model} is not there; fetch it with tools/fetch-model")
        self.start(model)
        self.check_random_texts()
        self.check_conversations()
        if "ORCD_ORACLE_DIR" in os.environ:
            self.check_oracle(pathlib.Path(os.environ["ORCD_ORACLE_DIR"]) / "tokenizer")


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    SOURCE_DIR = pathlib.Path(sys.argv.pop(1))
    unittest.main()
