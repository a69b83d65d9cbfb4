# SPDX-License-Identifier: Apache-2.0
"""gpu/cuda_api.h against NVIDIA's own headers, where a toolkit is installed (or GAIA_CUDA_INCLUDE says where they are): the
values of constants, the layout of structures, and for each entry point that this version of it exists and takes as many
parameters, of the same sizes. Types differ on purpose: an enumeration there is an int here."""
import glob
import os
import re
import subprocess

import pytest

import conftest

HEADER = os.path.join(conftest.TOP, "gpu", "cuda_api.h")

CHECK = r"""
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cstddef>
#include <cstdint>
#include <type_traits>
template <class A, class B> constexpr bool alike()
{
    return sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value;
}
template <class R, class... A, class S, class... B> constexpr bool fits(R (*)(A...), S (*)(B...))
{
    if constexpr (sizeof...(A) == sizeof...(B))
        return (alike<A, B>() && ...);
    else
        return false;
}
"""


def include_folder():
    wishes = [os.environ.get("GAIA_CUDA_INCLUDE", ""), "/usr/include", *sorted(glob.glob("/usr/local/cuda*/include"))]
    for folder in wishes:
        if folder and all(os.path.exists(os.path.join(folder, name)) for name in ("cuda.h", "cudaTypedefs.h")):
            return folder
    pytest.skip("no cuda.h and cudaTypedefs.h here")


def ours():
    with open(HEADER) as file:
        return file.read()


def constants(text):
    return dict(re.findall(r"^\s+(CU(?:DA)?_\w+) = (\d+),", text, re.M))


def rows(text):
    body = text[text.index("#define CUDA_ENTRY_POINTS(X)"):text.index("struct cuda_api {")]
    body = body.replace("\\\n", " ")
    found, at = [], 0
    for match in re.finditer(r"X\((cu\w+), (\d+), ([01]),\s*", body):
        depth, at = 0, match.end()
        for end in range(at, len(body)):
            depth += {"(": 1, ")": -1}.get(body[end], 0)
            if depth == 0:
                break
        found.append((match[1], int(match[2]), re.sub(r"\s+", " ", body[at:end + 1])))
    return found


def structures(text):
    """{name: [fields]} of the structures that are laid out here."""
    found = {}
    for body, name in re.findall(r"^typedef struct \w+ \{\n(.*?)^\} (\w+);", text, re.M | re.S):
        flat = re.sub(r"struct \{.*?\} (\w+);", r"x \1;", body, flags=re.S)
        found[name] = re.findall(r"(\w+)(?:\[\d+\])?;", flat)
    return found


def source(folder, text):
    with open(os.path.join(folder, "cuda.h")) as file:
        known = file.read()
    lines = [CHECK]
    for name, value in constants(text).items():
        if name.startswith("CU_DEVICE_ATTRIBUTE_") and name not in known:
            continue  # younger than this toolkit
        lines.append(f'static_assert((long long){name} == {value}, "{name}");')
    for name, version, parameters in rows(text):
        kind = f"PFN_{name}_v{version}"
        lines.append(f"static_assert(fits(({kind})nullptr, (CUresult (*){parameters})nullptr), \"{name} {version}\");")
    return "\n".join(lines) + "\n"


def compile_cxx(folder, workdir, text, *arguments):
    path = os.path.join(workdir, "check.cc")
    with open(path, "w") as file:
        file.write(text)
    return subprocess.run(["c++", "-std=c++17", "-x", "c++", f"-I{folder}", f"-I{conftest.TOP}", *arguments, path],
                          capture_output=True, text=True, timeout=100)


def test_constants_and_entry_points(workdir):
    folder, text = include_folder(), ours()
    assert len(rows(text)) > 40 and len(constants(text)) > 20
    done = compile_cxx(folder, workdir, source(folder, text), "-fsyntax-only")
    assert done.returncode == 0, done.stderr
    # The check itself: what is wrong is found.
    for wrong in (text.replace("CUDA_ERROR_OUT_OF_MEMORY = 2,", "CUDA_ERROR_OUT_OF_MEMORY = 3,"),
                  text.replace("X(cuMemCreate, 10020,", "X(cuMemCreate, 10030,"),
                  text.replace("(CUdevice * device_out, int ordinal)", "(CUdevice * device_out, long ordinal)")):
        assert wrong != text
        assert compile_cxx(folder, workdir, source(folder, wrong), "-fsyntax-only").returncode != 0


def layout(folder, workdir, text, include):
    lines = [f"#include {include}", "#include <cstddef>", "#include <cstdio>", "int main() {"]
    for name, fields in structures(text).items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));' for field in fields]
    program = os.path.join(workdir, "layout")
    done = compile_cxx(folder, workdir, "\n".join(lines) + "}\n", "-o", program)
    assert done.returncode == 0, done.stderr
    return subprocess.run([program], capture_output=True, text=True, timeout=20, check=True).stdout


def test_layouts(workdir):
    folder, text = include_folder(), ours()
    assert {"CUuuid", "CUmemLocation", "CUmemAllocationProp", "CUmemAccessDesc"} <= set(structures(text))
    mine, theirs = (layout(folder, workdir, text, include) for include in ('"gpu/cuda_api.h"', "<cuda.h>"))
    assert mine == theirs and mine.count("\n") > 12
