#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""exchanges.py OPENAPI DIRECTORY - compare what curl has sent and got (its --trace files) with the contract.

Every answer must be declared for its operation: its status, its media type, and the schema of its JSON. Where it is a success
the request must be declared too: parameters and body. Prints "ok" and "not ok" lines."""
import json
import os
import re
import sys
from urllib.parse import parse_qsl, unquote, urlsplit

import jsonschema

LARGE = 8 << 20  # bytes of a trace; larger ones are tensors, and left out
SHOWN = 20


def read_trace(path):
    """The exchanges of one trace: [request head, request body, answer head, answer body] as bytes."""
    exchanges, kind = [], None
    with open(path, encoding="latin-1") as lines:
        for line in lines:
            mark = re.match(r"(=>|<=|==) (Send header|Send data|Recv header|Recv data|Info|.*)", line)
            if mark and not re.match(r"[0-9a-f]{4,}: ", line):
                kind = mark.group(2).split(",")[0] if mark.group(1) != "==" else None
                if kind and kind.startswith("Send header"):
                    exchanges.append([b"", b"", b"", b""])
                continue
            places = {"Send header": 0, "Send data": 1, "Recv header": 2, "Recv data": 3}
            place = places.get(kind)
            if place is None or not exchanges:
                continue
            # "0000: 48 54 ... text"; sixteen bytes a line
            data = line.split(":", 1)[1][1:49]
            exchanges[-1][place] += bytes.fromhex(data)
    return exchanges


def read_head(text):
    """The last head of some (100 Continue comes before): first line, and names in lower case."""
    heads = [h for h in text.decode("latin-1").split("\r\n\r\n") if h]
    if not heads:
        return None, {}
    lines = heads[-1].split("\r\n")
    fields = (line.split(":", 1) for line in lines[1:] if ":" in line)
    return lines[0], {name.strip().lower(): value.strip() for name, value in fields}


class Contract:
    def __init__(self, document):
        self.document = document
        self.resolver = jsonschema.RefResolver.from_schema(document)
        self.paths = [(re.compile(re.sub(r"\\{name\\}", "[^/]+", re.sub(r"\\{id\\}", "[0-9]{1,16}", re.escape(path))) + "$"), path) for path in document["paths"]]
        self.succeeded = set()

    def problem(self, schema, value):
        validator = jsonschema.Draft202012Validator(schema, resolver=self.resolver)
        error = next(validator.iter_errors(value), None)
        return error and f"/{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"

    def operation(self, method, target):
        path = unquote(urlsplit(target).path)
        name = next((name for pattern, name in self.paths if pattern.match(path)), None)
        method = "get" if method == "HEAD" else method.lower()
        return name, self.document["paths"].get(name, {}).get(method)

    def response(self, operation, status):
        found = operation["responses"].get(str(status))
        return self.resolver.resolve(found["$ref"])[1] if found and "$ref" in found else found

    def check_answer(self, operation, status, fields, body, method):
        declared = self.response(operation, status)
        if declared is None:
            return f"{status} is not declared"
        kind = fields.get("content-type", "").split(";")[0]
        content = declared.get("content")
        if not body or method == "HEAD":
            return None
        if not content or kind not in content:
            return f"{status} with {kind or 'a body'} is not declared"
        if kind in ("application/json", "application/problem+json"):
            return self.problem(content[kind]["schema"], json.loads(body))
        if kind in ("application/x-ndjson", "text/event-stream"):
            # chunks are shown as they came: their lengths are lines of their own
            for line in body.decode().replace("\r\n", "\n").split("\n"):
                text = line.removeprefix("data: ")
                if text.startswith(('{"id"', '{"epoch"', '{"event"', '{"missed"')) and text.endswith("}"):
                    value = json.loads(text)
                    wrong = self.problem({"$ref": "#/components/schemas/" + self.schema_of_line(value)}, value)
                    if wrong:
                        return wrong
        return None

    @staticmethod
    def schema_of_line(value):
        """What a line of a stream is: an event of /v1/events, or the report of a workload."""
        if "missed" in value:
            return "MissedEvent"
        if "change" in value:
            return "BlockEvent" if "block" in value else "SequenceEvent"
        return "StepEvent" if "kv_bytes" in value else "Workload"

    def check_request(self, operation, target, fields, body):
        known = {p["name"]: p["schema"] for p in operation["parameters"] if p["in"] == "query"}
        for name, value in parse_qsl(urlsplit(target).query, keep_blank_values=True):
            if name not in known:
                return f"the parameter {name} is not declared"
            if known[name].get("type") in ("integer", "number"):
                value = float(value) if "." in value or "e" in value else int(value)
            wrong = self.problem(known[name], value)
            if wrong:
                return f"the parameter {name}: {wrong}"
        if not body:
            return None
        kind = fields.get("content-type", "").split(";")[0]
        content = operation.get("requestBody", {}).get("content", {})
        if kind.endswith("json") and "ndjson" not in kind:
            if "application/json" not in content:
                return None if json.loads(body) == {} else "a body is not declared"
            return self.problem(content["application/json"]["schema"], json.loads(body))
        return None if kind in content else f"a body of {kind} is not declared"

    def check(self, exchange):
        """What is wrong with an exchange, None if nothing is."""
        asked, asked_fields = read_head(exchange[0])
        got, fields = read_head(exchange[2])
        if not asked or not got or not re.match(r"[A-Z]+ \S+ HTTP/1.[01]$", asked):
            return None
        method, target, _ = asked.split(" ")
        status = int(got.split(" ")[1])
        name, operation = self.operation(method, target)
        if "x-attnd-node" not in fields:
            return None  # a proxy says so
        if operation is None or status < 200 or len(exchange[3]) < int(fields.get("content-length", 0) if method != "HEAD" else 0):
            return None  # there is no such operation; or the client did not stay
        wrong = self.check_answer(operation, status, fields, exchange[3], method)
        if wrong is None and 200 <= status < 300:
            wrong = self.check_request(operation, target, asked_fields, exchange[1])
            self.succeeded.add((name, operation["operationId"]))
        return wrong and f"{method} {target[:100]} -> {status}: {wrong}"


def main():
    contract = Contract(json.load(open(sys.argv[1])))
    seen, wrongs = 0, {}
    for entry in os.scandir(sys.argv[2]):
        if entry.stat().st_size > LARGE:
            continue
        for exchange in read_trace(entry.path):
            seen += 1
            wrong = contract.check(exchange)
            if wrong:
                wrongs.setdefault(re.sub(r"[0-9]+", "N", wrong), wrong)
    for wrong in list(wrongs.values())[:SHOWN]:
        print("not ok", wrong)
    if not wrongs:
        print(f"ok {seen} exchanges are as /openapi.json says" if seen > 1000 else f"not ok only {seen} exchanges")
    for path, operations in contract.document["paths"].items():
        for operation in operations.values():
            good = (path, operation["operationId"]) in contract.succeeded
            print("ok" if good else "not ok", operation["operationId"], "has succeeded")
    return bool(wrongs)


sys.exit(main())
