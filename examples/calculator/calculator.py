"""Computes an arithmetic expression: prints its value, or fails with the reason."""

import ast
import operator
import sys

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    sys.exit("only numbers, + - * / and brackets are allowed")


try:
    print(value(ast.parse(sys.argv[1], mode="eval").body))
except (SyntaxError, ZeroDivisionError, RecursionError) as error:
    sys.exit(f"cannot compute {sys.argv[1]!r}: {error}")
