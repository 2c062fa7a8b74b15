#!/usr/bin/env bash
# On a machine with a TPU: conformance and certificates, then the 95 % gate against $BASE (a revision; empty: a week ago).
# Base and head are timed one after the other, since one process at a time can hold the chip, and their records compared: each
# is in units of baselines that took turns with it. What is kept lies under $RUNNER_TEMP/tops.
source "$(dirname "$0")/lib.sh"
export JAX_PLATFORMS=tpu,cpu
kept="${RUNNER_TEMP:-$(mktemp -d)}/tops"
mkdir -p "$kept"
base="${BASE:-$(git rev-list -1 --before='7 days ago' HEAD)}"
base="${base:-$(git rev-list --max-parents=0 HEAD | tail -n 1)}"

record() { # record NAME: certify and time the tree we are in
    uv sync --quiet --all-packages --extra tpu
    TOPS_WORKSPACE="$kept/$1" uv run --no-sync tops-tests certify
    TOPS_WORKSPACE="$kept/$1" uv run --no-sync tops-bench run --json "$kept/$1.json"
}

uv sync --quiet --all-packages --extra tpu
uv run --no-sync python -c 'import jax; assert jax.default_backend() == "tpu", f"no TPU here: {jax.devices()}"'
uv run --no-sync pytest packages/tops-kernels packages/tops-tests
record head
git worktree add --quiet --detach "$kept/tree" "$base"
trap 'git worktree remove --force "$kept/tree"; rm -rf "$TOPS_WORKSPACE"' EXIT
(cd "$kept/tree" && unset VIRTUAL_ENV && record base)
uv run --no-sync tops-bench compare "$kept/base.json" "$kept/head.json"
