from django.db import migrations, models


class Migration(migrations.Migration):
    """Without it the list of a cluster that is no longer used is looked for among the jobs of all others."""

    dependencies = [("jobs", "0015_pinned_to_a_node")]

    operations = [
        migrations.AddIndex(model_name="job", index=models.Index(fields=["cluster", "-id"], name="job_of_cluster")),
    ]
