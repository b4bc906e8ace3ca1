"""Loads the tokenizer that a worker provides into the public `tokenizers` library and into Jinja.

    tokenizers_test.py BIN_DIR SOURCE_DIR

The library must give the same ids as the worker's own tokenizer: on random text with special tokens
in it, for conversations, and, if ORCD_ORACLE_DIR names the results of a third tokenizer, on each of
those. The vocabularies are made-up ones, one for each row of the table of pre-tokenizers, the
oracle's, and the real model's if it is in the model cache.
"""

import hashlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import random
import re
import struct
import sys
import tempfile
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
TEXTS_PER_ROW = 100
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


def rows():
    """The first name of every row of the table of pre-tokenizers that has one."""
    table = (SOURCE_DIR / "runtime/text/pre_tokenizer.cc").read_text(encoding="utf-8")
    return re.findall(r'constexpr Names k\w+ = \{\s*"([^"]+)"', table)


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def array(element_type, elements):
    return struct.pack("<IQ", element_type, len(elements)) + b"".join(elements)


def write_vocabulary(path, pre_tokenizer):
    """Writes a GGUF file without tensors. Every pair of frequent bytes merges, so that ids show where
    words end, and merges do not lead to some of the tokens."""
    u32, i32, text, many = 4, 5, 8, 9
    spelled = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = iter(range(0x100, 0x200))
    bytes_spelled = [chr(byte if byte in spelled else next(moved)) for byte in range(256)]
    frequent = b" \n\r\t'sStLlaAzZ019.,-!/$(_\xc3\xa9\xcc\x81\xe3\x80"
    frequent = [bytes_spelled[byte] for byte in frequent]
    pairs = [(left, right) for left in frequent for right in frequent]
    pick = random.Random(11)
    pick.shuffle(pairs)
    longer = {"".join(pick.choices(frequent, k=pick.choice((3, 4)))) for _ in range(3000)}
    tokens = bytes_spelled + ["".join(pair) for pair in pairs] + sorted(longer)
    special = [f"<|special_{i}|>" for i in range(12)]
    types = [1] * len(tokens) + [3] * len(special)
    tokens += special
    keys = {
        "general.architecture": (text, string("qwen2")),
        "tokenizer.ggml.model": (text, string("gpt2")),
        "tokenizer.ggml.pre": (text, string(pre_tokenizer)),
        "tokenizer.ggml.tokens": (many, array(text, [string(token) for token in tokens])),
        "tokenizer.ggml.token_type": (many, array(i32, [struct.pack("<i", t) for t in types])),
        "tokenizer.ggml.merges": (many, array(text, [string(" ".join(pair)) for pair in pairs])),
        "tokenizer.ggml.bos_token_id": (u32, struct.pack("<I", len(tokens) - 1)),
        "tokenizer.ggml.eos_token_id": (u32, struct.pack("<I", len(tokens) - 2)),
    }
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)))
        for key, (value_type, value) in keys.items():
            file.write(string(key) + struct.pack("<I", value_type) + value)


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
        """With BOS in front if the worker's prompts begin with it."""
        return self.library.encode(text).ids

    def bos(self):
        return self.library_ids("")

    def check_random_texts(self, texts=TEXTS, keeps_bytes=True):
        """A vocabulary without a token for every byte does not give every text back."""
        special = [token["content"] for token in self.config["added_tokens_decoder"].values()]
        self.assertGreater(len(special), 10)
        pick = random.Random(7)

        def character():
            code = pick.randrange(0x110000)
            return chr(code) if not 0xD800 <= code < 0xE000 else "?"

        for _ in range(texts):
            pieces = [
                pick.choice(PIECES + special) if pick.random() < 0.7 else character()
                for _ in range(pick.randrange(1, 120))
            ]
            text = "".join(pieces)
            ids = self.library_ids(text)
            self.assertEqual(ids, self.ours(text), ascii(text))
            if keeps_bytes:
                ids = ids[len(self.bos()) :]
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

    def check_published(self, texts, ids):
        """llama.cpp's own cases, in which no special token is parsed."""
        texts = texts.read_bytes().decode().split("\n__ggml_vocab_test__\n")
        self.assertGreater(len(texts), 40)
        # The library always parses special tokens; these texts have none.
        self.check_ids(texts, ids, parse_special=True)
        self.check_ids(texts, ids, parse_special=False)

    def check_ids(self, texts, ids, parse_special):
        lines = ids.read_text().split("\n")[: len(texts)]
        self.assertEqual(len(lines), len(texts))
        for text, line in zip(texts, lines):
            expected = self.bos() + [int(number) for number in line.split()]
            self.assertEqual(self.ours(text, parse_special), expected, ascii(text))
            if parse_special:
                self.assertEqual(self.library_ids(text), expected, ascii(text))

    def check_hundred(self, folder, name):
        texts = (folder / f"{name}-cases.bin").read_bytes().decode().split("\x1e")
        self.assertEqual(len(texts), 100)
        self.check_ids(texts, folder / f"{name}-ids-plain.txt", parse_special=False)
        self.check_ids(texts, folder / f"{name}-ids-special.txt", parse_special=True)

    def oracle(self):
        if "ORCD_ORACLE_DIR" not in os.environ:
            self.skipTest("ORCD_ORACLE_DIR is not set")
        return pathlib.Path(os.environ["ORCD_ORACLE_DIR"])

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

    def test_every_pre_tokenizer(self):
        self.assertGreater(len(rows()), 10)
        for name in rows():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                vocabulary = pathlib.Path(folder) / "vocabulary.gguf"
                write_vocabulary(vocabulary, name)
                self.start(vocabulary)
                self.check_random_texts(TEXTS_PER_ROW)
                self.doCleanups()

    def test_qwens_vocabulary(self):
        folder = self.oracle() / "tokenizer"
        self.start(folder / "qwen2.5-vocab.gguf")
        self.check_published(folder / "cases.inp", folder / "cases.out")
        self.check_random_texts()
        self.check_conversations()

    def test_llamas_vocabulary(self):
        folder = self.oracle() / "tokenizer2"
        self.start(folder / "llama-bpe-vocab.gguf")
        self.assertEqual(self.bos(), [128000])
        self.check_published(folder / "published.inp", folder / "llama-bpe-published.out")
        self.check_hundred(folder, "llama-bpe")
        self.check_random_texts()

    def test_smollms_vocabulary(self):
        self.start(self.oracle() / "tokenizer2/smollm2-vocab.gguf")
        self.check_hundred(self.oracle() / "real2", "smollm2")
        self.check_random_texts(keeps_bytes=False)

    def test_the_real_models_vocabulary(self):
        cache = os.environ.get("ORCD_MODEL_CACHE") or pathlib.Path.home() / ".cache/orcd/models"
        model = pathlib.Path(cache) / REAL_MODEL
        if not model.exists():
            self.skipTest(f"{model} is not there; fetch it with tools/fetch-model")
        self.start(model)
        self.check_random_texts()
        self.check_conversations()
        if "ORCD_ORACLE_DIR" in os.environ:
            folder = self.oracle() / "tokenizer"
            self.check_published(folder / "cases.inp", folder / "cases.out")


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    SOURCE_DIR = pathlib.Path(sys.argv.pop(1))
    unittest.main()
