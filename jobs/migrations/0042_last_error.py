from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("jobs", "0041_container_images")]

    operations = [
        migrations.RenameField(model_name="cluster", old_name="trouble", new_name="last_error"),
    ]
