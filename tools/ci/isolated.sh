#!/usr/bin/env bash
# Each stage's own tests beside nothing but what its pyproject declares: a sibling it forgot to declare is ModuleNotFoundError.
# isolated.sh [PACKAGE ...]: all five without arguments. Each gets an environment of its own, thrown away after.
source "$(dirname "$0")/lib.sh"
light_codegen
[ $# -gt 0 ] || set -- tops-manifest tops-workloads tops-kernels tops-tests tops-bench
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch" "$TOPS_WORKSPACE"' EXIT
# The test tools are no package's own dependency (tops-tests' apart): they come in the versions of uv.lock.
uv export --quiet --only-group dev --no-emit-workspace --no-hashes -o "$scratch/pins" >/dev/null
failed=""
for package in "$@"; do
    [ -d "packages/$package" ] || { echo "isolated: no packages/$package" >&2; exit 2; }
    echo "== $package alone"
    environment="$scratch/$package"
    # --no-default-groups: the workspace's own group would bring every sibling along.
    UV_PROJECT_ENVIRONMENT="$environment" uv sync --quiet --package "$package" --no-default-groups
    uv pip install --quiet --python "$environment" --constraints "$scratch/pins" pytest pytest-xdist hypothesis
    case "$package" in
        # Under the audit hook, too: it fails on reading another stage's files.
        # The recurrences' values were held by the unit stage; gla's own kernels stay, as what they read is what the others read.
        tops-kernels | tops-bench)
            "$environment/bin/python" -m tools.audit "${package#tops-}" -- -n auto \
                -k "not (test_gla_cases or test_gla_step or test_simple_gla or test_locking or test_storing)" || failed="$failed $package"
            ;;
        # The values were held by the unit stage; here one op shows that the suite finds all it imports.
        tops-tests) "$environment/bin/python" -m pytest -q -n auto "packages/$package/tests" -k "(not test_holds or rms_norm) and not (test_oracle_ or test_sequence_parallel or test_mutations)" || failed="$failed $package" ;;
        *) "$environment/bin/python" -m pytest -q -n auto "packages/$package/tests" || failed="$failed $package" ;;
    esac
done
[ -z "$failed" ] || { echo "isolated: failed:$failed" >&2; exit 1; }
