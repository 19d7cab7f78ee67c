"""Commands of the common evaluation frameworks, which a suite uses by default.

Templates are shell commands. Their parameters are environment variables, so that names of files and datasets are never
part of the command text: $ACME_CHECKPOINT, $ACME_MODEL (its copy on the node, else the checkpoint itself),
$ACME_DATASET, $ACME_START, $ACME_END, $ACME_SAMPLES (from start to end), $ACME_ALL_SAMPLES (1 if these are all samples
of the dataset), $ACME_OUTPUT (a directory of the shard), $ACME_RESULT (the file for the result, an object of names and
numbers), $ACME_PORT.
"""

from __future__ import annotations

from dataclasses import dataclass

# A whole dataset is requested by name only, so that groups of tasks work too: `--samples` only supports tasks
LM_EVAL = """\
set --
if [ -z "$ACME_ALL_SAMPLES" ]; then
  python3 -c 'import json, os; json.dump({os.environ["ACME_DATASET"]: list(range(int(os.environ["ACME_START"]),
int(os.environ["ACME_END"])))}, open(os.environ["ACME_OUTPUT"] + "/samples.json", "w"))' || exit 1
  set -- --samples "$ACME_OUTPUT/samples.json"
fi
lm_eval --model hf --model_args "pretrained=$ACME_MODEL" --tasks "$ACME_DATASET" --batch_size auto \\
  --log_samples --output_path "$ACME_OUTPUT" "$@"
"""

# Standard errors cannot be averaged over shards, so they are omitted
LM_EVAL_RESULT = """\
python3 - <<'END'
import glob, json, os, sys
newest = max(glob.glob(os.environ["ACME_OUTPUT"] + "/**/results_*.json", recursive=True), key=os.path.getmtime)
said = json.load(open(newest))
asked = int(os.environ["ACME_SAMPLES"])
answered = sum(one["effective"] for one in said["n-samples"].values())
if not os.environ["ACME_ALL_SAMPLES"] and asked != answered:
    sys.exit(f"lm_eval processed {answered} samples instead of {asked}: a group of tasks cannot be split; list its"
             " tasks in the suite, or set parts: 1")
scores = {}
for name, value in said["results"][os.environ["ACME_DATASET"]].items():
    metric, _, of = name.partition(",")
    if of and not metric.endswith("_stderr") and isinstance(value, (int, float)):
        scores[metric if of == "none" else metric + " " + of] = value
json.dump(scores, open(os.environ["ACME_RESULT"], "w"))
END
"""

# opencompass exits with 0 even if its tasks failed; then there are no predictions, or only temporary ones
OPENCOMPASS = """\
opencompass --hf-path "$ACME_MODEL" --datasets "$ACME_DATASET" --mode infer --work-dir "$ACME_OUTPUT/work" || exit
find "$ACME_OUTPUT/work" -path '*/predictions/*.json' ! -name 'tmp_*' | grep -q . ||
  { echo "opencompass wrote no predictions; its log is in $ACME_OUTPUT/work" >&2; exit 1; }
"""

OPENCOMPASS_RESULT = """\
opencompass --hf-path "$ACME_MODEL" --datasets "$ACME_DATASET" --mode eval --reuse latest \\
  --work-dir "$ACME_OUTPUT/work" &&
python3 - <<'END'
import glob, json, os
scores = {}
newest = max(glob.glob(os.environ["ACME_OUTPUT"] + "/work/*"))
for name in glob.glob(newest + "/results/*/*.json"):
    for metric, value in json.load(open(name)).items():
        if isinstance(value, (int, float)):
            scores[os.path.basename(name)[:-5] + " " + metric] = value
json.dump(scores, open(os.environ["ACME_RESULT"], "w"))
END
"""


@dataclass(frozen=True, kw_only=True)
class FrameworkTemplate:
    infer: str = ""
    metric: str = ""
    splits: bool = True  # whether it can process a part of the samples


TEMPLATES = {
    "plain": FrameworkTemplate(),
    "lm-eval": FrameworkTemplate(infer=LM_EVAL, metric=LM_EVAL_RESULT),
    "opencompass": FrameworkTemplate(infer=OPENCOMPASS, metric=OPENCOMPASS_RESULT, splits=False),
}
