"""Sampled mutation testing: change one place of a module at a time and count the changes that its tests detect.

`python bench/mutants.py jobs/core/lifecycle.py --tests tests/jobs/core/test_lifecycle.py --sample 40 --seed 1`

Each mutant lives in a fork of this process, where pytest runs until the first failure. A mutant is killed if a test
fails or the tests take too long. Tests that use the database are left out. Programs that tests start are not changed.
"""

import argparse
import ast
import copy
import gc
import multiprocessing
import os
import random
import sys
import time
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, FunctionType

import pytest
from hypothesis import Phase, settings

COMPARISONS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
OPERATORS = [*COMPARISONS, (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)]
SWAPS = {**dict(OPERATORS), **{new: old for old, new in OPERATORS}, ast.FloorDiv: ast.Mult}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
REMOVABLE = (ast.AugAssign, ast.Raise, ast.Break, ast.Continue)
NOT_EXECUTED = ("annotation", "returns", "decorator_list")
PLUGINS = ["-ptests.without_database", "-pno:xdist", "-pno:randomly", "-pno:cacheprovider"]
OPTIONS = ["-xq", "--assert=plain", "--reruns=0", "--hypothesis-seed=0", "--hypothesis-profile=thorough", *PLUGINS]


def replacements(node):
    """Yield the fields that a changed copy of this node has, or the node that replaces it."""
    match node:
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            yield {"op": SWAPS[type(op)]()}
        case ast.Compare(ops=[op]):
            yield {"ops": [SWAPS[type(op)]()]}
        case ast.Constant(value=bool(value)):
            yield {"value": not value}
        case ast.Constant(value=int(value) | float(value)):
            yield {"value": value + 1}
        case ast.Name(id=name) if name in NAMES:
            yield {"id": NAMES[name]}
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield {"value": ast.Constant(None)}
        case ast.If(test=test) | ast.IfExp(test=test) if isinstance(test, ast.Name | ast.Attribute | ast.Call):
            yield {"test": ast.UnaryOp(ast.Not(), test)}
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
    if isinstance(node, REMOVABLE) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield ast.Pass()


def mutants(node, in_function=False):
    """Yield (whether it is inside a function, node, replacement, function that puts a node into its place)."""
    for name, value in ast.iter_fields(node):
        inside = in_function or (isinstance(node, ast.FunctionDef) and name == "body")
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children if name not in NOT_EXECUTED else ()):
            exchange = partial(value.__setitem__, index) if isinstance(value, list) else partial(setattr, node, name)
            for new in replacements(child):
                changed = new if isinstance(new, ast.AST) else copy.copy(child)
                vars(changed).update(new if isinstance(new, dict) else {})
                yield inside, child, ast.fix_missing_locations(ast.copy_location(changed, child)), exchange
            if isinstance(child, ast.AST):
                yield from mutants(child, inside)


class MutantImporter(SourceFileLoader):
    code: CodeType | None = None

    def find_spec(self, name, path=None, target=None):
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, name):
        return self.code


class FirstFailure:
    """Hypothesis stops at the first failing example instead of shrinking it."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self):
        settings.register_profile("mutants", settings.default, phases=[Phase.explicit, Phase.generate], database=None)
        settings.load_profile("mutants")


def run_tests(importer, tests):
    """End this process with pytest's status. Functions that are already imported get the code of the mutant."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.meta_path.insert(0, importer)
    codes = [importer.code]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    by_name = {code.co_qualname: code for code in codes}
    gc.unfreeze()  # what is frozen is not listed
    for found in gc.get_objects():
        if type(found) is FunctionType and found.__module__ == importer.name and found.__qualname__ in by_name:
            new = by_name[found.__qualname__]
            # A mutant without `super()` needs no closure, but a function cannot lose the one it has
            found.__code__ = new if new.co_freevars else new.replace(co_freevars=found.__code__.co_freevars)
    os._exit(pytest.main([*OPTIONS, *tests], [FirstFailure()]))


def tests_pass(tree, options, limit_s=600):
    """Return whether the tests pass within the limit, in a fork with the module as it stands in the tree."""
    importer = MutantImporter(options.file.removesuffix(".py").replace("/", "."), os.path.abspath(options.file))
    importer.code = compile(tree, importer.path, "exec")
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=[importer, options.tests])
    process.start()
    process.join(limit_s)
    process.kill()
    return process.exitcode == 0


def survivors(chosen, tree, options):
    """Yield and print the mutants that the tests do not detect."""
    began = time.monotonic()
    if chosen and not tests_pass(tree, options):
        sys.exit("The tests fail without a change.")
    limit_s = 10 + 5 * (time.monotonic() - began)
    for _, child, new, exchange in chosen:
        exchange(new)
        if tests_pass(tree, options, limit_s):
            change = "  →  ".join(ast.unparse(node).partition("\n")[0] for node in (child, new))
            print(f"survived {options.file}:{child.lineno}: {change}", flush=True)
            yield child
        exchange(child)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", help="the module, relative to the repository")
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["ACME_COMPILED"] = "0"
    with open(options.file) as file:
        tree = ast.parse(file.read())
    found = [*mutants(tree)]
    chosen = random.Random(options.seed).sample(found, min(options.sample, len(found)))
    # A change outside of functions needs a process that has not imported the module, so these mutants come first
    survived = [*survivors([row for row in chosen if not row[0]], tree, options)]
    pytest.main([*OPTIONS, "--collect-only", "-qqq", *options.tests], [FirstFailure()])
    survived += survivors([row for row in chosen if row[0]], tree, options)
    print(f"{options.file}: {len(chosen) - len(survived)} of {len(chosen)} mutants killed, {len(found)} possible")


if __name__ == "__main__":
    main()
