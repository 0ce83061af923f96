#!/usr/bin/env bash
# The step of action.yml: what an upgrade of NCCL from BEFORE to AFTER changes on MACHINES and NODES, as a comment of
# PULL_REQUEST and in the run's summary. Exit code 1 where a new pick is slower than FAIL_ABOVE allows.
set -uo pipefail
read -ra machines <<<"$MACHINES"
read -ra nodes <<<"$NODES"
limit=()
[ -z "${FAIL_ABOVE:-}" ] || limit=(--fail-above "$FAIL_ABOVE")
comment=$(mktemp)
slower=0
echo "### NCCL $BEFORE to $AFTER: picks that change" >"$comment"
for machine in "${machines[@]}"; do
    for count in "${nodes[@]}"; do
        shown=$(COLUMNS=100 nccl-tuner diff --machine "$machine" --nodes "$count" --nccl "$BEFORE" "$AFTER" \
            "${limit[@]}" 2>&1)
        case $? in
            0) verdict="" ;;
            1) verdict=": **slower than $FAIL_ABOVE allows**" slower=1 ;;
            *) echo "$shown" >&2 && exit 2 ;;
        esac
        printf '<details><summary>%s nodes of %s%s</summary>\n\n```text\n%s\n```\n\n</details>\n' \
            "$count" "$machine" "$verdict" "$shown" >>"$comment"
    done
done
cat "$comment" >>"${GITHUB_STEP_SUMMARY:-/dev/stdout}"
if [ -n "${GH_TOKEN:-}" ] && [ -n "${PULL_REQUEST:-}" ]; then
    gh pr comment "$PULL_REQUEST" --edit-last --create-if-none --body-file "$comment"
fi
exit $slower
