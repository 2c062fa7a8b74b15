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

# light_codegen: LLVM polishes no CPU program from here on (the gradient of gla compiles in a third of the time). The HLO passes, which
# decide what is computed, stay, and so does every tolerance. Not for the main job, which certifies the code that users get; and at
# night the same tests run without.
light_codegen() {
    export XLA_FLAGS="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true ${XLA_FLAGS:-}"
}

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
