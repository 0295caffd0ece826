#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_gateway.py NODES - print gateway.yaml for so many daemons: a Service for each, and the routes that choose between them.

A request goes to the node of the id in its path, which is id >> 40; without one to the node that X-Attnd-Node names ("n1", as every answer has it); else
to any that is ready. Gateways calculate nothing, so the ids of a node are a regular expression. An HTTPRoute takes 16 rules: a node is one rule, and
beyond 15 nodes there are more routes, attnd-1 and on. A Gateway takes all routes that name it as one list.
"""
import argparse
import sys

NODES_MAX = 8192
ROUTE_NODES_MAX = 15  # of 16 rules, as the Gateway API has it; one is for any node
FIRST = 1 << 40
LAST_ID = (1 << 53) - 1


def digits(low, high):
    return low if low == high else f"[{low}-{high}]"


def of_length(low, high):
    """Expressions for the numbers from low to high, two strings of digits of one length."""
    if not low:
        return [""]
    if low[0] == high[0]:
        return [low[0] + rest for rest in of_length(low[1:], high[1:])]
    n = len(low) - 1
    anything = f"[0-9]{{{n}}}" if n > 1 else "[0-9]" * n
    first, last = int(low[0]), int(high[0])
    parts = []
    if low[1:] != "0" * n:
        parts += [low[0] + rest for rest in of_length(low[1:], "9" * n)]
        first += 1
    if high[1:] != "9" * n:
        parts_last = [high[0] + rest for rest in of_length("0" * n, high[1:])]
        last -= 1
    else:
        parts_last = []
    if first <= last:
        parts.append(digits(str(first), str(last)) + anything)
    return parts + parts_last


def numbers(low, high):
    parts = []
    for length in range(len(str(low)), len(str(high)) + 1):
        parts += of_length(str(max(low, 10 ** (length - 1) if length > 1 else 0)).zfill(length), str(min(high, 10**length - 1)))
    return "|".join(parts)


def paths(node):
    low = node * FIRST or 1
    return f"/v1/(sequences|leases|workloads)/({numbers(low, min((node + 1) * FIRST - 1, LAST_ID))})(/.*)?"


def backend(name):
    return f"      backendRefs:\n        - {{name: {name}, port: 8400}}\n"


def route(first, end):
    """The nodes from first to end - 1; the first route has the rule for any, too."""
    name = f"attnd-{first // ROUTE_NODES_MAX}" if first else "attnd"
    out = f"""---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: {name}
  labels: {{app.kubernetes.io/name: attnd}}
spec:
  parentRefs:
    - {{name: attnd}}
  rules:
"""
    for node in range(first, end):
        out += f"""    - matches:
        - headers:
            - {{type: Exact, name: X-Attnd-Node, value: n{node}}}
        - path:
            type: RegularExpression
            value: '{paths(node)}'
{backend(f"attnd-{node}")}"""
    if first == 0:
        out += """    - matches:
        - path: {type: PathPrefix, value: /}
""" + backend("attnd")
    return out


def nodes(text):
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= NODES_MAX:
        raise argparse.ArgumentTypeError(f"wants an integer in 1..{NODES_MAX}, has {text!r}")
    return int(text)


def main():
    parser = argparse.ArgumentParser(prog="make_gateway.py", description=__doc__.partition(" - ")[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", metavar="NODES", type=nodes, help="replicas of the StatefulSet in attnd.yaml")
    count = parser.parse_args().nodes
    out = """# SPDX-License-Identifier: Apache-2.0
# gateway.yaml - made by make_gateway.py %d, for as many daemons as attnd.yaml has: a Service for each, and what chooses between them.
#
# The Gateway is called attnd, and is yours: it has the certificate and the address. It has to match a regular expression with the whole path, and to prefer
# one to the prefix / (the specification leaves both to it). A request that comes to the wrong node is 421. Without `hostnames` the routes take requests for
# every host of the Gateway: write yours into each route's spec, or let the Gateway's listener have it.
""" % count
    for node in range(count):
        out += f"""---
apiVersion: v1
kind: Service
metadata:
  name: attnd-{node}
  labels: {{app.kubernetes.io/name: attnd}}
spec:
  publishNotReadyAddresses: true
  selector: {{statefulset.kubernetes.io/pod-name: attnd-{node}}}
  ports:
    - {{name: http, port: 8400, targetPort: http}}
"""
    for first in range(0, count, ROUTE_NODES_MAX):
        out += route(first, min(first + ROUTE_NODES_MAX, count))
    sys.stdout.write(out)


if __name__ == "__main__":
    main()
