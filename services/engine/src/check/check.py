"""Checks the interpreter that runs it and the entry script of a job, before the job starts.

Arguments: entry script (or nothing), source directory, and "tables" if the inputs are tables; a conda file and its version of
Python, if this interpreter must have that version. Prints one problem per line as "FILE<tab>LINE<tab>text", and "ok" at the
end. Imports only modules that every interpreter has loaded already, and keeps to the syntax of old interpreters, so that these
can report their problem too.
"""

# ruff: noqa: B905, RUF005, UP024, UP028, UP031
import sys

PYTHON_MIN = (3, 10)
ONLY_AST = 0x400
MODULES_MAX = 200
"""The number of modules that are checked."""
DEFINES_UNSEEN = (b"globals(", b"exec(", b"setattr(", b"vars(", b"__getattr__", b"import *")
"""Code that may define functions which the text does not show."""


def say(path, line, text):
    text = "%s\t%s\t%s\n" % (path, line or "", " ".join(str(text).split()))
    if hasattr(sys.stdout, "buffer"):
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    else:
        sys.stdout.write(text)


def kind(node):
    return type(node).__name__


def read(path):
    with open(path, "rb") as file:
        return file.read()


def exists(path):
    try:
        read(path)
    except (IOError, OSError):
        return False
    return True


def parse(path, source):
    """Returns the syntax tree, or None after reporting an error."""
    try:
        tree = compile(source, path, "exec", ONLY_AST, True)
        compile(tree, path, "exec", 0, True)
        return tree
    except SyntaxError as error:
        say(error.filename or path, error.lineno, error.msg)
    except (ValueError, RecursionError, MemoryError) as error:
        say(path, None, error)
    return None


def statements(body):
    """Iterates over the statements that an import runs."""
    for node in body:
        yield node
        if kind(node) in ("FunctionDef", "AsyncFunctionDef", "ClassDef"):
            continue
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            for inner in statements(getattr(node, field, ())):
                yield inner


def names(target):
    if kind(target) == "Name":
        return [target.id]
    inner = [target.value] if kind(target) == "Starred" else getattr(target, "elts", [])
    return [name for each in inner for name in names(each)]


def definitions(tree):
    """Returns the nodes that define each name of a module."""
    found = {}
    for node in statements(tree.body):
        if kind(node) in ("FunctionDef", "AsyncFunctionDef", "ClassDef"):
            defined = [node.name]
        elif kind(node) in ("Import", "ImportFrom"):
            defined = [alias.asname or alias.name.split(".")[0] for alias in node.names]
        elif kind(node) == "Assign":
            defined = [name for target in node.targets for name in names(target)]
        elif kind(node) in ("AnnAssign", "AugAssign", "For"):
            defined = names(node.target)
        elif kind(node) == "With":
            defined = [name for item in node.items if item.optional_vars for name in names(item.optional_vars)]
        else:
            continue
        for name in defined:
            found.setdefault(name, []).append(node)
    return found


def check_functions(path, source, tree):
    found = definitions(tree)
    if not {"run", "run_item", "enqueue"} & set(found) and not any(sign in source for sign in DEFINES_UNSEEN):
        say(path, None, "it defines no run(mini_batch)")
    for name, least, most, gets in (
        ("init", 0, 0, "it gets no arguments"),
        ("run", 1, 2, "it gets the mini-batch, and its context as the second argument"),
        ("run_item", 1, 2, "it gets an item, and its context as the second argument"),
        ("shutdown", 0, 0, "it gets no arguments"),
    ):
        if name == "run_item" and "run" in found:
            continue
        nodes = found.get(name, [])
        if len(nodes) != 1 or kind(nodes[0]) not in ("FunctionDef", "AsyncFunctionDef") or nodes[0].decorator_list:
            continue
        node, arguments = nodes[0], nodes[0].args
        positional = len(arguments.posonlyargs) + len(arguments.args)
        required = positional - len(arguments.defaults)
        keywords = [key.arg for key, value in zip(arguments.kwonlyargs, arguments.kw_defaults) if value is None]
        if required > most:
            say(path, node.lineno, "%s needs %d arguments, and %s" % (name, required, gets))
        elif keywords:
            say(path, node.lineno, "%s needs the keyword argument %s, and %s" % (name, keywords[0], gets))
        elif positional < least and not arguments.vararg:
            say(path, node.lineno, "%s takes no argument, and %s" % (name, gets))


def imported(tree, script, source_directory):
    """Iterates over the files that a module may import from the folders of the job, both for each import."""
    separator = "/"
    folder = separator.join(script.split(separator)[:-1])
    for node in tree.body:
        if kind(node) == "Import":
            modules, folders = [alias.name for alias in node.names], (source_directory, folder)
        elif kind(node) == "ImportFrom" and not node.level:
            modules = [node.module] + ["%s.%s" % (node.module, alias.name) for alias in node.names]
            folders = (source_directory, folder)
        elif kind(node) == "ImportFrom":
            base = folder.split(separator)
            folders = (separator.join(base[: len(base) - node.level + 1]),)
            start = node.module + "." if node.module else ""
            modules = [node.module] if node.module else []
            modules += [start + alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            parts = module.split(".")
            for end in range(1, len(parts) + 1):
                for base in folders:
                    path = separator.join([base] + parts[:end])
                    yield path + ".py"
                    yield path + "/__init__.py"


def asks_for(tree, form):
    """Returns whether a module gets tables in this form ("arrow": pyarrow.Table, "items": objects), as those of functions
    may."""
    name = ["__gristmill_%s__" % form]
    assigned = [node for node in tree.body if kind(node) == "Assign" and names(node.targets[0]) == name]
    return any(getattr(node.value, "value", None) is True for node in assigned)


def check_script(script, source_directory):
    """Returns the packages that tables need in this script."""
    packages = ("numpy", "pandas")
    seen, waiting, left = set([script]), [script], MODULES_MAX
    while waiting and left:
        path = waiting.pop()
        try:
            source = read(path)
        except (IOError, OSError) as error:
            if path == script:
                say(path, None, error)
            continue
        left -= 1
        tree = parse(path, source)
        if tree is None:
            continue
        if path == script:
            check_functions(path, source, tree)
            if asks_for(tree, "arrow"):
                packages = ("pyarrow",)
            elif asks_for(tree, "items"):
                packages = ()
        for other in imported(tree, path, source_directory):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return packages


def is_installed(module):
    for finder in sys.meta_path:
        try:
            if finder.find_spec(module, None) is not None:
                return True
        except (AttributeError, ImportError):
            continue
    return False


def main(script, source_directory, tables, conda_file=None, wanted=None):
    version = sys.version.split()[0]
    if wanted and wanted != "%d.%d" % sys.version_info[:2]:
        text = (
            "it asks for Python %s, %s is %s, and there is neither a python%s nor micromamba, mamba or conda on PATH: "
            "install one of them, or replace the environment: --set environment=PATH, an interpreter or a requirements file"
        )
        say(conda_file, None, text % (wanted, sys.executable, version, wanted))
    if sys.version_info < PYTHON_MIN:
        text = "Python %d.%d or newer is needed, and this is %s: choose another one with `environment`"
        say(sys.executable, None, text % (PYTHON_MIN[0], PYTHON_MIN[1], version))
        return
    packages = check_script(script, source_directory) if script else ("numpy", "pandas")
    if tables == "tables":
        if "" in sys.path:
            sys.path.remove("")
        for module in packages:
            for path in ("%s/%s.py" % (source_directory, module), "%s/%s/__init__.py" % (source_directory, module)):
                if exists(path):
                    say(path, None, "it hides the package %s, which inputs of type tabular need: rename it" % module)
        missing = [module for module in packages if not is_installed(module)]
        if missing:
            text = "inputs of type tabular need %s: %s -m pip install %s"
            say(sys.executable, None, text % (" and ".join(missing), sys.executable, " ".join(missing)))


main(*sys.argv[1:6])
sys.stdout.write("ok\n")
