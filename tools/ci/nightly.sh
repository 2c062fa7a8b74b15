#!/usr/bin/env bash
# The long tail that pull requests leave out, and the rest once more: compiled as users' programs are (lib.sh, light_codegen).
source "$(dirname "$0")/lib.sh"
uv run pytest -m slow
uv run pytest -n auto
tools/ci/aot.sh --full
