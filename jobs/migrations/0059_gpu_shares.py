import django.contrib.postgres.fields
from django.db import migrations, models

from ._guards import KEEP_FIRST_SHARES, SHARE_CONSTRAINTS

KINDS = ["pretrain", "sft", "mllm", "evaluation", "debug", "other"]

# The indexes have live allocations only, and are built with one pass over the table, about 0.3 s for a million rows; until
# then allocations wait. NOT VALID spares a second pass: all older rows have the defaults.
SHARES = f"""
SET LOCAL lock_timeout = '10s';
ALTER TABLE jobs_allocation DROP CONSTRAINT one_live_holder_per_gpu, {SHARE_CONSTRAINTS}
"""
WHOLE_GPUS = """
ALTER TABLE jobs_allocation
    DROP CONSTRAINT one_live_holder_per_thousandth,
    DROP CONSTRAINT share_within_gpu,
    DROP CONSTRAINT one_live_holder_per_gpu,
    ADD CONSTRAINT one_live_holder_per_gpu
    EXCLUDE USING btree (node_id WITH =, gpu WITH =) WHERE (released_at IS NULL) DEFERRABLE INITIALLY IMMEDIATE
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0058_several_gpu_models")]

    operations = [
        migrations.AddField(
            model_name="allocation",
            name="share",
            field=models.SmallIntegerField(
                db_default=1000, default=1000, help_text="Thousandths of the GPU; 1000 is all of it."
            ),
        ),
        migrations.AddField(
            model_name="allocation",
            name="share_begin",
            field=models.SmallIntegerField(db_default=0, default=0, help_text="First thousandth of the GPU."),
        ),
        migrations.AddField(
            model_name="cluster",
            name="gpu_share_kinds",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(choices=[(kind, kind) for kind in KINDS], max_length=12),
                blank=True,
                db_default=[],
                default=list,
                help_text="Separated by commas, for example evaluation,debug. Their jobs may request a part of a GPU on"
                " nodes with shards. Leave empty for none.",
                size=None,
                verbose_name="kinds of jobs that may share a GPU",
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="gpu_milli",
            field=models.SmallIntegerField(
                db_default=0,
                default=0,
                editable=False,
                help_text="Part of one GPU that the job shares with others, instead of whole GPUs.",
                verbose_name="thousandths of a GPU",
            ),
        ),
        migrations.AddField(
            model_name="node",
            name="shards_per_gpu",
            field=models.SmallIntegerField(
                db_default=0,
                default=0,
                editable=False,
                help_text="Into how many parts the cluster can share each GPU of the node; 0: not at all.",
                verbose_name="shards per GPU",
            ),
        ),
        migrations.RunSQL(SHARES, WHOLE_GPUS),
        KEEP_FIRST_SHARES,
    ]
