"""How the usual frameworks are called: what a suite runs where its owner says nothing else.

Templates are shell commands; what they need to know comes as variables, so that no name of a file or dataset is ever
put into a command's text: $ACME_MODEL, $ACME_DATASET, $ACME_START, $ACME_END, $ACME_SAMPLES, $ACME_OUTPUT (a directory
of the shard's own), $ACME_RESULT (where the result belongs, as an object of names and numbers), $ACME_PORT.
"""

from __future__ import annotations

from dataclasses import dataclass

LM_EVAL = """\
python3 -c 'import json, os; json.dump({os.environ["ACME_DATASET"]: list(range(int(os.environ["ACME_START"]),
int(os.environ["ACME_END"])))}, open(os.environ["ACME_OUTPUT"] + "/samples.json", "w"))' &&
lm_eval --model hf --model_args "pretrained=$ACME_MODEL" --tasks "$ACME_DATASET" --batch_size auto \\
  --samples "$ACME_OUTPUT/samples.json" --log_samples --output_path "$ACME_OUTPUT"
"""

LM_EVAL_RESULT = """\
python3 - <<'END'
import glob, json, os
newest = max(glob.glob(os.environ["ACME_OUTPUT"] + "/**/results_*.json", recursive=True), key=os.path.getmtime)
found = json.load(open(newest))["results"][os.environ["ACME_DATASET"]]
scores = {name.replace(",", " "): value for name, value in found.items() if isinstance(value, (int, float))}
json.dump(scores, open(os.environ["ACME_RESULT"], "w"))
END
"""

OPENCOMPASS = """\
opencompass --hf-path "$ACME_MODEL" --datasets "$ACME_DATASET" --mode infer --work-dir "$ACME_OUTPUT/work"
"""

OPENCOMPASS_RESULT = """\
opencompass --hf-path "$ACME_MODEL" --datasets "$ACME_DATASET" --mode eval --reuse latest \\
  --work-dir "$ACME_OUTPUT/work" &&
python3 - <<'END'
import glob, json, os
scores = {}
for name in glob.glob(os.environ["ACME_OUTPUT"] + "/work/*/results/*/*.json"):
    for metric, value in json.load(open(name)).items():
        if isinstance(value, (int, float)):
            scores[os.path.basename(name)[:-5] + " " + metric] = value
json.dump(scores, open(os.environ["ACME_RESULT"], "w"))
END
"""


@dataclass(frozen=True, kw_only=True)
class Template:
    infer: str = ""
    metric: str = ""
    splits: bool = True  # whether it can be told to answer some samples only


TEMPLATES = {
    "plain": Template(),
    "lm-eval": Template(infer=LM_EVAL, metric=LM_EVAL_RESULT),
    "opencompass": Template(infer=OPENCOMPASS, metric=OPENCOMPASS_RESULT, splits=False),
}
