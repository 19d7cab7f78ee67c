from django.urls import path

from scheduling import views

urlpatterns = [path("jobs/<slug:public_id>/why/", views.why_it_waits, name="why")]
