#!/usr/bin/env bash
# The boundaries between the stages (CONTRIBUTING.md). --quick: what the pre-commit hook runs, a few seconds.
source "$(dirname "$0")/lib.sh"
uv run python -m tools.trust static
uv run python -m tools.trust contracts
[ "${1:-}" != --quick ] || exit 0

uv run python -m tools.trust purity
uv run tops-manifest check              # files against the schema and manifest.lock
uv run tops-tests tolerances --check    # the table against tolerances.lock
tools/ci/isolated.sh                    # each stage's tests beside nothing but what it declares; kernels and bench audited
# Under a pull request, or with TOPS_BASE=origin/main on a laptop: may these stages change together? The replay has a job of its own.
base="${TOPS_BASE:-${GITHUB_BASE_REF:+origin/$GITHUB_BASE_REF}}"
[ -z "$base" ] || uv run python tools/stage_gate.py "$base" HEAD --no-replay
