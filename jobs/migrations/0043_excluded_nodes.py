from django.db import migrations


class Migration(migrations.Migration):
    """The name of a relation. Only the catalogue changes, so it takes no time."""

    dependencies = [("jobs", "0042_last_error")]

    operations = [migrations.RenameField("maintenance", "spared", "excluded_nodes")]
