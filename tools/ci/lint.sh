#!/usr/bin/env bash
# Lint and format; then what must never be committed: private keys and files over 500 kB.
source "$(dirname "$0")/lib.sh"
uv run ruff check .
uv run ruff format --check .
git ls-files -z | xargs -0 uv run check-added-large-files --maxkb=500 --enforce-all
git ls-files -z | xargs -0 uv run detect-private-key
