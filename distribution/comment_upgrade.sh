#!/usr/bin/env bash
# The step of action.yml: what an upgrade of NCCL from BEFORE to AFTER changes on MACHINES and NODES, as a comment of
# PULL_REQUEST and in the run's summary. Exit code 1 where a new pick is slower than FAIL_ABOVE allows, or with
# FAIL_ON_CHANGE=true where any pick changes; 2 where there is nothing to judge, or it cannot be.
set -uo pipefail
release='^[0-9]+(\.[0-9]+){1,2}$'
for each in "$BEFORE" "$AFTER"; do
    [[ $each =~ $release ]] || { echo "NCCL release '$each': not three numbers, such as 2.28.9" >&2; exit 2; }
done
# All lines of an input, whatever is between its words.
read -rd '' -a machines <<<"$MACHINES" || true
read -rd '' -a nodes <<<"$NODES" || true
if [ "${#machines[@]}" -eq 0 ] || [ "${#nodes[@]}" -eq 0 ]; then
    echo "nothing to judge: machines or nodes are empty" >&2
    exit 2
fi
limit=() failed=""
if [ -n "${FAIL_ABOVE:-}" ]; then
    limit+=(--fail-above "$FAIL_ABOVE") failed="slower than $FAIL_ABOVE allows"
fi
case ${FAIL_ON_CHANGE:-false} in
    true) limit+=(--fail-on-change) failed="${failed:+$failed, or }a pick changes" ;;
    false) ;;
    *) echo "fail-on-change '$FAIL_ON_CHANGE'; valid: true, false" >&2; exit 2 ;;
esac
mark="<!-- nccl-tuner upgrade $BEFORE to $AFTER -->"
most=65000 # characters; GitHub refuses a comment of more than 65,536
comment=$(mktemp)
slower=0 left=0
printf '%s\n### NCCL %s to %s: picks that change\n' "$mark" "$BEFORE" "$AFTER" >"$comment"
for machine in "${machines[@]}"; do
    for count in "${nodes[@]}"; do
        shown=$(COLUMNS=100 nccl-tuner diff --machine="$machine" --nodes="$count" --nccl "$BEFORE" "$AFTER" \
            "${limit[@]}" 2>&1)
        case $? in
            0) verdict="" ;;
            1) verdict=": **$failed**" slower=1 ;;
            *) echo "$shown" >&2 && exit 2 ;;
        esac
        part=$(printf '<details><summary>%s nodes of %s%s</summary>\n\n```text\n%s\n```\n\n</details>\n' \
            "$count" "$machine" "$verdict" "${shown//\`\`\`/\'\'\'}")
        if [ $(($(wc -m <"$comment") + ${#part} + 200)) -gt "$most" ]; then
            left=$((left + 1))
            printf '%s\n' "$part"
        else
            printf '%s\n' "$part" >>"$comment"
        fi
    done
done
[ "$left" -eq 0 ] || echo "$left more in the run's log: a comment has room for 65,536 characters." >>"$comment"
cat "$comment" >>"${GITHUB_STEP_SUMMARY:-/dev/stdout}"
if [ -n "${GH_TOKEN:-}" ] && [ -n "${PULL_REQUEST:-}" ]; then
    # The comment of this upgrade by its mark, not whatever this account wrote last.
    path=${PULL_REQUEST#https://*/}
    repository=${path%/pull/*} number=${path##*/}
    own=$(gh api --paginate "repos/$repository/issues/$number/comments" \
        --jq ".[] | select(.body | startswith(\"$mark\")) | .id" | head -n 1)
    if [ -n "$own" ]; then
        gh api --method PATCH "repos/$repository/issues/comments/$own" --field "body=@$comment" >/dev/null
    else
        gh pr comment "$PULL_REQUEST" --body-file "$comment"
    fi
fi
exit $slower
