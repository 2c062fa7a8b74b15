#!/usr/bin/env bash
# The README's main job: certify every op, then bench it.
source "$(dirname "$0")/lib.sh"
command="$(readme_command main-job)"
echo "+ $command" >&2
bash -euo pipefail -c "$command"
