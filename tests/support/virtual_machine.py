"""A virtual machine with a kernel of Debian, whose control groups are all of version 2, unlike those of many machines.

It sees the files of this machine, and what it writes disappears with it. QEMU emulates the processor, which takes up to
half an hour, so only GRISTMILL_TEST_VM=required asks for it.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gristmill" / "kernels"
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "dpkg": "dpkg", "apt-get": "apt"}
# Their order depends on the kernel, so the machine tries those that fail again after the others.
MODULES = [
    *(f"drivers/virtio/{name}" for name in ("virtio", "virtio_ring", "virtio_pci_legacy_dev")),
    *(f"drivers/virtio/{name}" for name in ("virtio_pci_modern_dev", "virtio_pci")),
    *("net/9p/9pnet", "net/9p/9pnet_virtio", "fs/netfs/netfs", "fs/fscache/fscache", "fs/9p/9p"),
    "fs/overlayfs/overlay",
]
BEGAN = "the virtual machine has started"
INIT = f"""#!/busybox sh
/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev
for try in 1 2 3; do
  for module in {" ".join(Path(module).name for module in MODULES)}; do
    [ -d /sys/module/$module ] || insmod /modules/$module.ko 2>/dev/null
  done
done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /lower
mount -t tmpfs -o size=50% tmpfs /upper; mkdir /upper/new /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/new,workdir=/upper/work overlay /root
mount -t proc proc /root/proc; mount -t sysfs sysfs /root/sys; mount -t devtmpfs devtmpfs /root/dev
mkdir /root/dev/shm
for folder in dev/shm run; do mount -t tmpfs tmpfs /root/$folder; done
# The project may lie below /tmp, so that is the one of the host.
mkdir /root/run/tmp
mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
ifconfig lo 127.0.0.1 up
cp /script /root/run/script
echo "{BEGAN}"
chroot /root /bin/sh /run/script
poweroff -f
"""


def run(folder: Path, command: list[str], environment: dict[str, str], memory: str = "4G", seconds: int = 900) -> str:
    """Runs a command on it and returns what its console shows. `folder`: for files of the machine."""
    if os.environ.get("GRISTMILL_TEST_VM") != "required":
        pytest.skip("an emulated machine is slow: GRISTMILL_TEST_VM=required asks for it")
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            pytest.skip(f"{tool} is missing (on Debian: apt-get install {package})")
    kernel = debian_kernel()
    files = folder / "initial"
    for name in ("bin", "dev", "lower", "modules", "proc", "root", "sys", "upper"):
        (files / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), files / "busybox")
    for module in MODULES:
        (found,) = kernel.glob(f"lib/modules/*/kernel/{module}.ko")
        shutil.copy(found, files / "modules")
    variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    (files / "script").write_text(f"export TMPDIR=/run/tmp\n{variables}{shlex.join(command)} 2>&1\n")
    (files / "init").write_text(INIT)
    (files / "init").chmod(0o755)
    image = folder / "initial.cpio"
    with image.open("wb") as archive:
        names = "\n".join(str(path.relative_to(files)) for path in sorted(files.rglob("*"))).encode()
        subprocess.run(["busybox", "cpio", "-o", "-H", "newc"], cwd=files, input=names, stdout=archive, check=True)
    (image_of_kernel,) = kernel.glob("boot/vmlinuz-*")
    machine = ["qemu-system-x86_64", "-accel", "tcg"]
    machine += ["-m", memory, "-smp", "2", "-nographic", "-no-reboot"]
    boot = ["-kernel", image_of_kernel, "-initrd", image, "-append", "console=ttyS0 panic=-1 quiet"]
    host = "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"
    shared = ["-fsdev", host, "-device", "virtio-9p-pci,fsdev=host,mount_tag=host", "-nic", "none"]
    ended = subprocess.run(
        [*machine, *boot, *shared],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds,
        check=True,
    )
    console = ended.stdout.decode(errors="replace")
    assert BEGAN in console, console
    return console.partition(BEGAN)[2]


def debian_kernel() -> Path:
    """Returns the unpacked package of Debian's current kernel, after a download of 70 MB if it is missing."""
    if platform.machine() != "x86_64":
        pytest.skip("the virtual machine has an x86 processor, and the programs of this machine do not run there")
    shown = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=False)
    found = re.search(r"Depends: (linux-image-\S+)", shown.stdout)
    if not found:
        pytest.skip("there is no kernel for the virtual machine: apt knows no package linux-image-amd64")
    package = found[1]
    if not (CACHE / package).exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            fetched = subprocess.run(["apt-get", "download", package], cwd=work, capture_output=True, text=True)
            if fetched.returncode:
                pytest.skip(f"there is no kernel for the virtual machine: {fetched.stderr.strip()}")
            (archive,) = Path(work).glob("*.deb")
            subprocess.run(["dpkg", "-x", archive, Path(work) / "unpacked"], check=True)
            (Path(work) / "unpacked").rename(CACHE / package)
    return CACHE / package
