#!/usr/bin/env bash
# SGLang 0.5.23: across two trays of one NVLink domain NCCL carries every AllReduce unless PyTorch has expandable segments.
#
# Expected: the second custom AllReduce takes messages up to 16 MiB there, as in one node: one NVLink clique is enough.
# Seen:     across nodes the clique is asked for, and then that PyTorch's allocator hands out memory of the virtual memory
#           interface, which it does with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True alone, not by default. In one
#           node neither is asked for.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --dest . sglang==0.5.23
python3 - <<'PYTHON' >seen
import ast, glob, types, zipfile
wheel = zipfile.ZipFile(glob.glob("*.whl")[0])
module = ast.parse(wheel.read("sglang/srt/distributed/device_communicators/custom_all_reduce_v2.py"))
name = "can_use_custom_all_reduce_v2"
function = next(n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == name)
function.returns = None
for argument in function.args.args:
    argument.annotation = None
asked = []
def answers(nodes, expandable):
    asked.clear()
    def said(what, value):
        asked.append(what)
        return value
    space = {
        "dist": types.SimpleNamespace(get_world_size=lambda group: 8),
        "get_supported_world_sizes": lambda: (2, 3, 4, 5, 6, 7, 8, 16),
        "in_the_same_node_as": lambda group, source_rank: [nodes == 1] * 8,
        "is_one_nvlink_clique": lambda group, device: said("clique", True),
        "_is_vmm_backed_allocator": lambda device: said("expandable segments", expandable),
        "can_use_custom_all_reduce_with_nvlink": lambda **_: said("NVLink of the node", True),
    }
    exec(compile(ast.Module([function], []), name, "exec"), space)
    return space[name](group=None, device=None)
for nodes, expandable in ((1, False), (2, False), (2, True)):
    taken = answers(nodes, expandable)
    print(f"{nodes} node(s), expandable segments {expandable}: {taken}, asked: {', '.join(asked)}")
PYTHON
diff seen - <<'SEEN' && echo "sglang 0.5.23: as seen"
1 node(s), expandable segments False: True, asked: NVLink of the node
2 node(s), expandable segments False: False, asked: clique, expandable segments
2 node(s), expandable segments True: True, asked: clique, expandable segments
SEEN
