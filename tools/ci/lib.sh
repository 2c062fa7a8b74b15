# Sourced by every stage, so that a stage means the same on a laptop, under .ci/run and in a workflow.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export UV_LOCKED=1          # a pyproject that uv.lock no longer matches is an error, not a silent re-lock
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"
if [ -z "${TOPS_WORKSPACE:-}" ]; then
    TOPS_WORKSPACE="$(mktemp -d)"  # certificates of an earlier tree must not vouch for this one
    export TOPS_WORKSPACE
    trap 'rm -rf "$TOPS_WORKSPACE"' EXIT
fi

# readme_command KEY: the shell block of README.md that follows the line `<!-- command: KEY -->`.
readme_command() {
    local found
    found="$(awk -v mark="<!-- command: $1 -->" '
        $0 == mark { wanted = 1; next }
        wanted && /^```/ { if (inside) exit; inside = 1; next }
        wanted && inside' README.md)"
    [ -n "$found" ] || { echo "README.md: no shell block after <!-- command: $1 -->" >&2; return 1; }
    printf '%s\n' "$found"
}
