"""Builds a wheel of the program: wheel.py BUILD VERSION, by `make wheel`. pip install of it gives the commands `memtide` and
`python -m memtide`, and the module of packaging/memtide.py.

The program's libraries that a bare system lacks (oneDNN, OpenMP, OpenCL's loader, ...) go along, as auditwheel does it: beside
the program, which finds them by a relative path. Only glibc is the system's; the wheel's tag says which one it needs. A wheel
is a zip file of known names: the standard library is enough.
"""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

GLIBC = re.compile(r"ld-linux.*|lib(c|m|mvec|pthread|dl|rt)\.so\..*")


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def libraries(program):
    """The libraries that are not glibc's, with those that they need: {name: path}"""
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", run("ldd", program), re.M))
    return {name: path for name, path in found.items() if not GLIBC.fullmatch(name)}


def least_glibc(files):
    """The newest version of glibc that a symbol asks for, as "2_35" """
    versions = {tuple(map(int, v.split("."))) for f in files
                for v in re.findall(r"\bGLIBC_([\d.]+)", run("objdump", "-T", f))}
    return "_".join(map(str, max(versions)[:2]))


def licences(paths, folder):
    """The copyright files of the Debian packages that the libraries are from."""
    for name, path in paths.items():
        real = os.path.realpath(path)
        names = {real, real.removeprefix("/usr")}  # a package may name it without /usr
        owner = subprocess.run(["dpkg", "-S", *names], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        package = owner.split(":")[0]
        source = f"/usr/share/doc/{package}/copyright"
        if not package or not os.path.exists(source):
            sys.exit(f"wheel: {name}: its licence is not known: no package has {path}")
        shutil.copy(source, os.path.join(folder, f"LICENSE.{package}"))


def record(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def main(build, version):
    here = os.path.dirname(os.path.abspath(__file__))
    folder = tempfile.mkdtemp()
    package, info = os.path.join(folder, "memtide"), f"memtide-{version}.dist-info"
    os.makedirs(os.path.join(package, "bin"))
    os.makedirs(os.path.join(folder, info, "licenses"))
    shutil.copy(os.path.join(here, "memtide.py"), os.path.join(package, "__init__.py"))
    with open(os.path.join(package, "__main__.py"), "w") as f:
        f.write("from memtide import main\n\nmain()\n")
    parts = ["memtide", "memtide_plan.so", "memtide_cuda.so"]  # ranks need an MPI of the system: without memtide_mpi.so
    for name in parts:
        source = os.path.join(build, name)
        if os.path.exists(source):
            shutil.copy(source, os.path.join(package, "bin"))
    if os.path.exists(os.path.join(package, "bin", "memtide_cuda.so")):
        shutil.copytree(os.path.join(build, "devices"), os.path.join(package, "bin", "devices"))
    program = os.path.join(package, "bin", "memtide")
    paths = libraries(program)
    for name, path in paths.items():
        shutil.copy(os.path.realpath(path), os.path.join(package, "bin", name))
    licences(paths, os.path.join(folder, info, "licenses"))
    shutil.copy(os.path.join(here, "..", "LICENSE"), os.path.join(folder, info, "licenses"))
    files = [file.path for file in os.scandir(os.path.join(package, "bin")) if file.is_file()]
    for file in files:
        run("strip", "--strip-unneeded", file)
        own = run("patchelf", "--print-rpath", file).strip() if file.endswith(("_plan.so", "_cuda.so")) else ""
        run("patchelf", "--set-rpath", f"$ORIGIN:{own}" if own else "$ORIGIN", file)  # own: to NVIDIA's packages

    tag = f"py3-none-manylinux_{least_glibc(files)}_{os.uname().machine}"
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: memtide\nVersion: {version}\nSummary: the memory of neural-network "
                    "training, predicted and measured\nLicense: MIT\nRequires-Python: >=3.8\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: memtide\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "entry_points.txt": "[console_scripts]\nmemtide = memtide:main\n",
    }
    for name, text in texts.items():
        with open(os.path.join(folder, info, name), "w") as f:
            f.write(text)
    wheel = os.path.join(build, f"memtide-{version}-{tag}.whl")
    lines = ""
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as out:
        for place, _, names in sorted(os.walk(folder)):
            for name in sorted(names):
                path = os.path.join(place, name)
                inside = os.path.relpath(path, folder)
                with open(path, "rb") as f:
                    data = f.read()
                entry = zipfile.ZipInfo(inside, (2026, 1, 1, 0, 0, 0))  # the same bytes each time
                entry.external_attr, entry.compress_type = (os.stat(path).st_mode & 0xFFFF) << 16, zipfile.ZIP_DEFLATED
                out.writestr(entry, data)
                lines += record(inside, data)
        out.writestr(f"{info}/RECORD", lines + f"{info}/RECORD,,\n")
    shutil.rmtree(folder)
    print(wheel)


if __name__ == "__main__":
    main(*sys.argv[1:])
