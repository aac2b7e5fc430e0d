"""What comes from others: its versions, its licenses, its known vulnerabilities."""

from __future__ import annotations

import json
import re
import subprocess

import abi_snapshot as abi
import pytest

ROOT = abi.ROOT
LIBRARY = ROOT / "build" / "libprefixcache.so"
DATABASE = "golang.org/x/vulndb"
GOVULNCHECK = "golang.org/x/vuln/cmd/govulncheck@v1.9.0"

# Every module that go.mod names: its license, and whether it is linked into the library.
MODULES = {
    "github.com/google/go-cmp": ("BSD-3-Clause", False),  # tests only
    "github.com/google/uuid": ("BSD-3-Clause", True),
    "github.com/klauspost/cpuid/v2": ("MIT", True),
    "github.com/pkg/errors": ("BSD-2-Clause", True),
    "golang.org/x/sys": ("BSD-3-Clause", True),
    "gorgonia.org/cu": ("Apache-2.0", True),
}
# Words that stand in each license text, and none of the others.
LICENSES = {
    "Apache-2.0": ("Apache License", "Version 2.0, January 2004"),
    "BSD-2-Clause": ("Redistributions in binary form must reproduce",),
    "BSD-3-Clause": ("Redistributions in binary form must reproduce", "may be used to endorse or promote"),
    "MIT": ("Permission is hereby granted, free of charge", 'THE SOFTWARE IS PROVIDED "AS IS"'),
}


def go(*arguments: str, timeout: int = 1800) -> subprocess.CompletedProcess:
    return subprocess.run(["go", *arguments], capture_output=True, text=True, cwd=ROOT, timeout=timeout)


def required() -> dict[str, str]:
    """Module -> version, as go.mod has them."""
    return dict(re.findall(r"^\t(\S+) (v\S+)", (ROOT / "go.mod").read_text(), re.MULTILINE))


def linked() -> dict[str, str]:
    """Module -> version, as the built library says itself."""
    out = go("version", "-m", str(LIBRARY)).stdout
    found = dict(re.findall(r"^\tdep\t(\S+)\t(v\S+)", out, re.MULTILINE))
    assert found, out
    return found


def license_text(module: str) -> str:
    done = go("list", "-m", "-f", "{{.Dir}}", module)
    assert done.returncode == 0, done.stderr
    with open(f"{done.stdout.strip()}/LICENSE") as f:
        return f.read()


def test_go_mod_names_the_modules_of_this_list_and_no_others():
    assert set(required()) == set(MODULES)


def test_the_library_contains_the_modules_that_may_be_in_it():
    versions = required()
    assert linked() == {module: versions[module] for module, (_, inside) in MODULES.items() if inside}


def test_every_module_is_pinned_by_its_hash():
    sums = (ROOT / "go.sum").read_text().splitlines()
    for module, version in required().items():
        for name in (f"{module} {version} h1:", f"{module} {version}/go.mod h1:"):
            assert any(line.startswith(name) for line in sums), name


def test_the_modules_on_this_machine_are_those_of_go_sum():
    done = go("mod", "verify")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", MODULES)
def test_the_license_of_a_module_is_the_one_of_this_list(module):
    text = " ".join(license_text(module).split())
    words = LICENSES[MODULES[module][0]]
    matching = [name for name, some in LICENSES.items() if all(w in text for w in some)]
    assert all(w in text for w in words)
    assert max(matching, key=lambda name: len(LICENSES[name])) == MODULES[module][0]


def test_the_list_of_licenses_is_what_its_script_writes():
    """Exactly the modules in the library, with their texts."""
    done = subprocess.run(["bash", "scripts/third_party_licenses.sh"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    headings = re.findall(r"^==== (\S+) v\S+ ====$", done.stdout, re.MULTILINE)
    assert set(headings) == set(linked())
    assert (ROOT / "THIRD_PARTY_LICENSES").read_text() == done.stdout, (
        "run scripts/third_party_licenses.sh >THIRD_PARTY_LICENSES"
    )


@pytest.fixture(scope="module")
def vulnerabilities(tmp_path_factory) -> str:
    """The Go vulnerability database, as a URL of a folder.

    It is fetched as a module, by the way that everything else comes, and so is the program
    that indexes it. The day of the database is in its version, which a failure shows.
    """
    folder = tmp_path_factory.mktemp("vulnerabilities")
    fetched = subprocess.run(
        ["go", "mod", "download", "-json", f"{DATABASE}@latest"], capture_output=True, text=True, cwd=folder
    )
    assert fetched.returncode == 0, fetched.stdout + fetched.stderr
    module = json.loads(fetched.stdout)
    entries, indexer = f"{module['Dir']}/data/osv", f"{DATABASE}/cmd/indexdb@{module['Version']}"
    done = go("run", indexer, "-vulns", entries, "-out", str(folder / module["Version"]), timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / module["Version"]).as_uri()


def govulncheck(database: str, folder) -> subprocess.CompletedProcess:
    """Reads the source, the standard library included: what counts are the calls that are made."""
    flags = subprocess.run(["make", "-s", "cuda-env"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    command = f"{flags}\nexec go run {GOVULNCHECK} -db {database} ./..."
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=folder, timeout=1800)


def test_no_known_vulnerability_is_reachable(vulnerabilities):
    done = govulncheck(vulnerabilities, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No vulnerabilities found" in done.stdout


def test_a_known_vulnerability_would_be_found(vulnerabilities, tmp_path):
    (tmp_path / "go.mod").write_text("module known\n\ngo 1.26\n\nrequire golang.org/x/text v0.3.5\n")
    (tmp_path / "known.go").write_text(
        'package known\n\nimport "golang.org/x/text/language"\n\nvar Tag, Err = language.Parse("en")\n'
    )
    fetched = subprocess.run(["go", "mod", "tidy"], capture_output=True, text=True, cwd=tmp_path)
    assert fetched.returncode == 0, fetched.stderr
    done = govulncheck(vulnerabilities, tmp_path)
    assert done.returncode != 0
    assert "GO-2021-0113" in done.stdout, done.stdout + done.stderr
