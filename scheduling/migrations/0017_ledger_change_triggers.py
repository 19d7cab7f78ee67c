from django.db import migrations

from ._ledger_triggers import CREATE_TRIGGERS


class Migration(migrations.Migration):
    """Each table is locked by itself, for milliseconds: creating a trigger reads no rows. An interrupted run can be
    repeated. Nothing is computed here: the loop fills the periods.
    """

    atomic = False
    dependencies = [
        ("failures", "0017_step_text"),
        ("scheduling", "0016_ledger_periods"),
    ]

    operations = CREATE_TRIGGERS
