import django.contrib.postgres.fields
from django.db import migrations, models

KINDS = ["pretrain", "sft", "mllm", "evaluation", "debug", "other"]

# The thousandths of all GPUs are numbered, so one range says which of them an allocation holds: a node has room for 32768
# GPUs of 1000 thousandths. An exclusion constraint is checked at the end of each statement, so one UPDATE may swap GPUs.
# Only live allocations are in its index. It is built with one pass over the table, about 0.3 s for a million rows; until
# then allocations wait. NOT VALID spares a second pass: all older rows have the defaults.
SHARES = """
SET LOCAL lock_timeout = '10s';
ALTER TABLE jobs_allocation
    ADD CONSTRAINT share_within_gpu CHECK (share_begin >= 0 AND share > 0 AND share_begin + share <= 1000) NOT VALID,
    DROP CONSTRAINT one_live_holder_per_gpu,
    ADD CONSTRAINT gpu_not_over_allocated
    EXCLUDE USING gist (
        int8range((node_id * 32768 + gpu) * 1000 + share_begin, (node_id * 32768 + gpu) * 1000 + share_begin + share)
        WITH &&
    ) WHERE (released_at IS NULL AND gpu IS NOT NULL) DEFERRABLE INITIALLY IMMEDIATE
"""
WHOLE_GPUS = """
ALTER TABLE jobs_allocation
    DROP CONSTRAINT gpu_not_over_allocated,
    DROP CONSTRAINT share_within_gpu,
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
    ]
