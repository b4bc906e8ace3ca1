"""Jinja as transformers sets it up for chat templates, with a clock that stands still.

The settings are those of transformers' utils/chat_template_utils.py. Needs the package jinja2
(3.1.6).
"""

import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2025, 7, 26, 13, 5, 9, 4321)


class Raised(jinja2.exceptions.TemplateError):
    """The template itself refuses its input."""


class Generation(jinja2.ext.Extension):
    """{% generation %}: renders its body. In transformers it also records where the body stands."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("render_body"), [], [], body).set_lineno(
            line
        )

    def render_body(self, caller):
        return caller()


def raise_exception(message):
    raise Raised(message)


def strftime_now(format):
    return NOW.strftime(format)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def render(env, source, context):
    """(outcome, text): "text" with the rendering, "raises" with the template's own words, or "fails"
    with Python's error."""
    try:
        return "text", env.from_string(source).render(**context)
    except Raised as error:
        return "raises", str(error)
    except Exception as error:  # whatever Python has
        return "fails", f"{type(error).__name__}: {error}"
