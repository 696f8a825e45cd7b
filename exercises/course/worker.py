"""The process in which a hand-in runs: it gets a job on standard input and sends messages back.
 It knows no solution and no judge. Before it runs foreign code it gives up what that code does not
need: files elsewhere, other processes, the network. Two barriers stand in a row. On Linux the
kernel itself refuses other files, whatever opens them (Landlock). Everywhere a hook of Python
refuses, and reports, what Python code does; code that is written to get round this hook can.
"""

import contextlib
import ctypes
import importlib.util
import json
import math
import os
import random
import resource
import sys
import types

# What the machine tells about its processor, and what a library may need.
SYSTEM = (
    *("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache"),
    *("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu", "/sys/fs/cgroup"),
    *("/dev/null", "/dev/urandom", "/dev/random", "/dev/zero"),
)
REPLY = 1  # the file on which the marker listens


def hide_streams() -> None:
    """Keep the channel to the marker, and let foreign code print into nothing."""
    global REPLY
    REPLY = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def send(**message) -> None:
    """A message to the marker: one line of JSON."""
    os.write(REPLY, json.dumps(message).encode() + b"\n")


# What is refused ----------------------------------------------------------------------------------


def close_with_landlock(readable: tuple[str, ...]) -> bool:
    """Let the kernel refuse all files but these and the folder; false where it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    create, add, restrict = 444, 445, 446  # numbers of system calls, the same on all processors
    version = libc.syscall(create, None, 0, 1)
    if version < 1:
        return False
    files = 2 ** (13 + min(version - 1, 2) + (version >= 5)) - 1  # all kinds of access it knows
    network = 3 if version >= 4 else 0
    signals = 3 if version >= 6 else 0
    wanted = (ctypes.c_uint64 * 3)(files, network, signals)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = libc.syscall(create, wanted, size, 0)
    if rules < 0:
        return False
    read_file, read_folder = 4, 8
    here = os.getcwd()
    for path in (*readable, here):
        if not os.path.exists(path):
            continue
        access = read_file | read_folder if os.path.isdir(path) else read_file
        if path == os.devnull:
            access |= 2
        if path == here:
            access = files & ~1  # everything but execution
        place = os.open(path, os.O_PATH)
        rule = access.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        if libc.syscall(add, rules, 1, rule, 0) != 0:
            return False
        os.close(place)
    libc.prctl(38, 1, 0, 0, 0)  # no new privileges
    done = libc.syscall(restrict, rules, 0) == 0
    os.close(rules)
    return done


REFUSED = (
    *("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty."),
    *("os.kill", "os.link", "os.symlink", "os.chmod", "os.chown"),
    *("socket.", "ctypes.", "sqlite3.", "resource.", "gc.get_", "winreg.", "sys.addaudithook"),
)
WRITING = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.utime")
LISTING = ("os.listdir", "os.scandir", "os.chdir", "glob.", "os.walk")


def hook_for(readable: tuple[str, ...]):
    """A hook that refuses and reports; what it needs is bound here, out of reach of patches."""
    realpath, dumps, write = os.path.realpath, json.dumps, os.write
    allowed = tuple(realpath(path) for path in readable)
    folder, reply = realpath(os.getcwd()), REPLY
    changing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    devnull, separator = os.devnull, os.sep
    refused_events, writing, listing = REFUSED, WRITING, LISTING

    def within(path, places) -> bool:
        return any(path == place or path.startswith(place + separator) for place in places)

    def refuse(event, what=""):
        note = f"{event} {what}".strip()[:200]
        write(reply, dumps({"refused": note}).encode() + b"\n")
        raise PermissionError(f"the marker does not allow {note}")

    def hook(event, args):
        if event == "open":
            path, _, flags = args
            if path is None or isinstance(path, int):
                return
            path = realpath(path)
            path = path.decode() if isinstance(path, bytes) else path
            places = (folder, devnull) if flags & changing else (folder, *allowed)
            if not within(path, places):
                refuse(event, path)
        elif event.startswith(refused_events):
            refuse(event, args[0] if event == "socket.connect" else "")
        elif event == "object.__setattr__" and args[1] == "__code__":
            refuse(event)
        elif event.startswith((*writing, *listing)):
            place = args[0]
            if place is None or isinstance(place, int):
                return
            path = str(realpath(place))
            if event.startswith(writing) and not within(path, (folder,)):
                refuse(event, path)
            if not within(path, (folder, *allowed)):  # an import looks everywhere: no remark
                raise PermissionError(f"the marker does not allow {event} {path}")

    return hook


def open_size():
    """A file that tells how much memory this process has; opened while it still may be."""
    with contextlib.suppress(OSError):  # macOS has no such file: there the time limit has to do
        return open("/proc/self/statm")


def limit(memory: int, size) -> None:
    """Limit what the process may use from here on: memory in bytes, files of 100 MB, no core."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**8, 10**8))
    if size:
        with size:
            used = int(size.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))


# The hand-in --------------------------------------------------------------------------------------


def plain(data: object) -> object:
    """Tensors and tuples as lists: the marker gets data only; TypeError for anything else."""
    if hasattr(data, "detach"):
        return data.detach().tolist()
    if isinstance(data, list | tuple):
        return [plain(each) for each in data]
    if isinstance(data, dict):
        return {str(key): plain(value) for key, value in data.items()}
    if data is None or isinstance(data, bool | int | float | str):
        return data
    raise TypeError(f"a {type(data).__name__} where numbers or text are expected")


def in_short(error: BaseException) -> str:
    """An error in one line."""
    text = f"{type(error).__name__}: {error}".strip()
    return (text.split("\n")[0])[:160]


def step(number: int, action, skip) -> None:
    """Do one thing, unless it killed an earlier process; report its beginning and its end."""
    if number in skip:
        return
    send(begin=number)
    found = {}
    try:
        found = {"result": action()}
    except NotImplementedError:
        found = {"error": "not answered"}
    except BaseException as error:  # also SystemExit and KeyboardInterrupt of foreign code
        found = {"error": in_short(error)}
    try:
        send(end=number, **found)
    except ValueError as error:
        send(end=number, error=in_short(error))


class Solve:
    """What the sheet defines, by name."""

    def __init__(self, names: dict):
        self._names = names

    def __getattr__(self, name):
        try:
            return self._names[name]
        except KeyError:
            raise NotImplementedError(name) from None


def load_module(name: str, path: str):
    """The script and what else the hand-in may import, without their folders on the path."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run_cell(module, number: int, source: str) -> None:
    code = compile(source, f"cell {number + 1}", "exec")
    exec(code, vars(module))


def probe(solve: Solve, source: str, seed: int) -> object:
    """What the probe of a task returns for a seed."""
    import torch

    space = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "math": math}
    space |= {"random": random, "at": sys.modules["the_annotated_transformer"]}
    exec(compile(source, "probe", "exec"), space)
    torch.manual_seed(seed)
    random.seed(seed)
    inputs = space["inputs"](seed)
    torch.manual_seed(seed)
    return plain(space["probe"](solve, *inputs))


def main() -> None:
    job = json.loads(sys.stdin.buffer.readline())
    hide_streams()
    size = open_size()
    readable = (*SYSTEM, *job["readable"])
    landlock = close_with_landlock(readable)
    import torch

    torch.set_num_threads(1)
    for name, path in job["modules"].items():
        load_module(name, path)
    limit(job["memory"], size)
    module = types.ModuleType("handed_in")
    module.display = lambda *values: None  # as in a notebook
    sys.modules["handed_in"] = module
    sys.addaudithook(hook_for(readable))
    send(ready=True, landlock=landlock)
    solve = Solve(vars(module))
    cells, probes, skip = job["cells"], job["probes"], job["skip"]
    for number, source in enumerate(cells):
        step(number, lambda n=number, text=source: run_cell(module, n, text), skip)
    for number, (source, seed) in enumerate(probes, len(cells)):
        step(number, lambda text=source, n=seed: probe(solve, text, n), skip)
    send(done=True)
    os._exit(0)  # without what foreign code wants to do at the end


if __name__ == "__main__":
    main()
