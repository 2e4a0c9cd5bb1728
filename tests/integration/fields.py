"""The request fields and kinds that the installed SDKs define, against the list that the field table is checked with.

Usage: fields.py [--write] LIST. Without --write it tells the differences and fails where there are any. A line is an API and
a path: `chat tools[].function.strict`, `responses tools[type=local_shell]`.
"""

import pathlib
import sys
import typing

import anthropic
import openai
from anthropic.types import message_create_params as messages
from anthropic.types.beta import message_create_params as beta_messages
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses

REQUESTS = {
    "chat": [chat.CompletionCreateParamsNonStreaming],
    "responses": [responses.ResponseCreateParamsNonStreaming],
    "messages": [messages.MessageCreateParamsNonStreaming, beta_messages.MessageCreateParamsNonStreaming],
}
# Lists whose elements are told apart by `type`, at any depth that a request is read.
KINDS = ("tools[]", "input[]", "messages[].content[]", "context_management.edits[]")
# Lists of objects whose fields are listed without a kind.
PLAIN = ("messages[]",)


def parts(annotation):
    """The types that a union or an alias stands for, and whether they are elements of a list."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    name = str(origin)
    if "Annotated" in name or "Required" in name:
        yield from parts(arguments[0])
    elif origin is typing.Union or "UnionType" in name:
        for argument in arguments:
            yield from parts(argument)
    elif origin and any(word in name.lower() for word in ("list", "iterable", "sequence")):
        yield from ((part, True) for part, _ in parts(arguments[0]))
    else:
        yield annotation, False


def is_object(kind):
    return isinstance(kind, type) and hasattr(kind, "__required_keys__")


def kinds(hints):
    """The literals of a type's `type` field."""
    for part, _ in parts(hints.get("type", type(None))):
        yield from typing.get_args(part) if typing.get_origin(part) is typing.Literal else ()


def walk(kind, path, depth):
    for name, annotation in typing.get_type_hints(kind).items():
        here = f"{path}.{name}".lstrip(".")
        yield here
        for part, listed in parts(annotation):
            if not is_object(part):
                continue
            inside = here + "[]" if listed else here
            hints = typing.get_type_hints(part)
            named = [f"{inside[:-1]}type={kind}]" for kind in kinds(hints)] if inside in KINDS else []
            yield from named
            yield from (f"{kind}.{field}" for kind in named for field in hints if field != "type")
            if inside in PLAIN or (depth == 0 and not listed):
                yield from walk(part, inside, depth + 1)


def listed():
    lines = set()
    for api, requests in REQUESTS.items():
        for request in requests:
            lines.update(f"{api} {path}" for path in walk(request, "", 0))
    return sorted(lines)


def main():
    path, lines = pathlib.Path(sys.argv[-1]), listed()
    versions = f"# openai {openai.__version__}, anthropic {anthropic.__version__}: written by tests/integration/fields.py"
    if "--write" in sys.argv:
        path.write_text("\n".join([versions, *lines]) + "\n")
        return
    stored = {line for line in path.read_text().splitlines() if not line.startswith("#")}
    new, gone = sorted(set(lines) - stored), sorted(stored - set(lines))
    print("\n".join([versions, *(f"+ {line}" for line in new), *(f"- {line}" for line in gone)]))
    sys.exit(bool(new or gone))


main()
