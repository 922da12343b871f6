# Shared by the executables of scripts/: makes and fills .venv, and runs their modules in it.
#
#   source toolbox/env.sh
#   env_ready EXTRAS                    e.g. env_ready torch,test,dev
#   env_run MODULE [ARGUMENT ...]       e.g. env_run bench.demo "$@"
#
# Needs Python 3.10 to 3.13 with venv, and a package index for pip. $PYTHON chooses the interpreter.
# Nothing is installed again while pyproject.toml, constraints.txt and the interpreter stay the same.

ENV_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
ENV_DIR="$ENV_ROOT/.venv"
ENV_PYTHON="$ENV_DIR/bin/python"

# Who sets this wants no __pycache__; here every process of the tests would compile torch again, and
# pytest every test: ignored folders and .venv take the bytecode.
unset PYTHONDONTWRITEBYTECODE

_env_say() { printf '%s\n' "$*" >&2; }

# what / found / fix, as the package's own errors.
_env_fail() {
    _env_say "error: $1"
    _env_say "found: $2"
    _env_say "fix: $3"
    return 1
}

_env_usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
        >/dev/null 2>&1
}

# --no-compile: pip compiles every module of every package, one by one, for a minute; Python compiles
# those that are imported when they are.
_env_pip() {
    "$ENV_PYTHON" -m pip --disable-pip-version-check install -qq --no-input --no-compile \
        --constraint "$ENV_ROOT/constraints.txt" "$@"
}

# torch has wheels for some interpreters only, so the first interpreter that gets one is taken:
# the plain python3 of the machine, then the newest.
_env_make() {
    local candidates=(python3 python3.13 python3.12 python3.11 python3.10)
    [ -n "${PYTHON:-}" ] && candidates=("$PYTHON")
    local candidate tried="" log
    log="$(mktemp)" || return 1
    for candidate in "${candidates[@]}"; do
        _env_usable "$candidate" || continue
        _env_say "making .venv with $candidate ($("$candidate" --version 2>&1)) and installing torch," \
            "which can take minutes"
        "$candidate" -m venv --clear "$ENV_DIR" || continue
        # The pip that comes with Python 3.11 takes three times as long to resolve the packages.
        _env_pip --upgrade pip 2>/dev/null || true
        # PyPI's torch for x86-64 has CUDA, several GB of it; constraints.txt names the one without.
        if _env_pip torch 2>"$log" || _env_pip --no-deps torch 2>>"$log" \
            --index-url https://download.pytorch.org/whl/cpu; then
            rm -f "$log"
            # Most of it is imported by the first processes, each of which would compile it; pip
            # leaves a core idle.
            "$ENV_PYTHON" -m compileall -q "$ENV_DIR"/lib/python*/site-packages/torch &>/dev/null &
            return 0
        fi
        tried="$tried $candidate"
        # Under a constraint pip calls a missing wheel a conflict.
        if ! grep -Eq "No matching distribution|ResolutionImpossible" "$log"; then
            cat "$log" >&2
            break
        fi
    done
    rm -f "$log"
    if [ -z "$tried" ]; then
        _env_fail "no interpreter to make .venv with" \
            "none of ${candidates[*]} is Python 3.10 to 3.13 with the venv module" \
            "install one (Debian and Ubuntu: apt install python3 python3-venv), or set PYTHON=/path"
    else
        rm -rf "$ENV_DIR" # made above, not usable
        _env_fail "torch could not be installed" "pip failed for:$tried" \
            "set PYTHON to another interpreter, or PIP_EXTRA_INDEX_URL to an index that has the \
torch version of constraints.txt"
    fi
}

_env_state() {
    {
        cat "$ENV_ROOT/pyproject.toml" "$ENV_ROOT/constraints.txt"
        printf '%s\n' "$ENV_ROOT" # an editable install points at the checkout
        "$ENV_PYTHON" -c 'import sys; print(sys.version)'
    } | cksum
}

env_ready() {
    local extras="$1" stamp state
    # .ready is written at the end: without it the folder is someone else's, or half made.
    if [ ! -e "$ENV_DIR" ]; then
        _env_make || return 1
    elif ! _env_usable "$ENV_PYTHON"; then
        _env_fail "the environment cannot be used" \
            "$ENV_PYTHON is missing, broken or not Python 3.10 to 3.13" "remove $ENV_DIR"
        return 1
    fi
    stamp="$ENV_DIR/.ready-${extras//,/-}"
    state="$(_env_state)"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$state" ]; then
        return 0
    fi
    _env_say "installing rmsnorm_export[$extras] into .venv"
    if ! _env_pip --editable "$ENV_ROOT[$extras]"; then
        _env_fail "the package and its extras could not be installed" "pip failed, see above" \
            "check the network and the package index, then run this again"
        return 1
    fi
    printf '%s\n' "$state" >"$stamp"
}

# A module of scripts/, from any folder.
env_run() {
    export PYTHONPATH="$ENV_ROOT${PYTHONPATH:+:$PYTHONPATH}"
    exec "$ENV_PYTHON" -m "$1" "${@:2}"
}
