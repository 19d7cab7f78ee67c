from django.db import migrations


class Migration(migrations.Migration):
    """Names of two columns. Only the catalogue changes, so it takes no time."""

    dependencies = [("failures", "0016_last_error")]

    operations = [
        migrations.RenameField("decision", "consumes", "consumes_retry"),
        migrations.RenameField("recoverystep", "words", "text"),
    ]
