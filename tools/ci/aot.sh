#!/usr/bin/env bash
# Every kernel compiled for every chip, without one, and its schedule held against the saved one (docs/aot.md): a row an op and
# pass, a minute and a half. --full: every row, ten minutes.
source "$(dirname "$0")/lib.sh"
chips=v4,v5e,v5p,v6e,tpu7x,sm_80,sm_90,sm_100
how=--quick
[ "${1:-}" != --full ] || how=""
# An environment of its own: with libtpu in the workspace's, jax would look for a TPU at every start.
UV_PROJECT_ENVIRONMENT="$(mktemp -d)"
export UV_PROJECT_ENVIRONMENT
trap 'rm -rf "$UV_PROJECT_ENVIRONMENT" "$TOPS_WORKSPACE"' EXIT
uv sync --quiet --package tops-bench --no-default-groups --extra tpu --extra cuda
"$UV_PROJECT_ENVIRONMENT/bin/tops-bench" aot --check $how --target "$chips"
