from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0036_cluster_address_forms")]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="accepted_at",
            field=models.DateTimeField(help_text="When its cluster took it, by our clock.", null=True),
        ),
    ]
