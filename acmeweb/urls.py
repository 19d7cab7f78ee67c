from django.contrib import admin
from django.contrib.auth import views as auth
from django.urls import include, path

from acmeweb import api, metrics, views

urlpatterns = [
    path("", views.home, name="home"),
    path("healthz", views.healthz, name="healthz"),
    path("readyz", views.readyz, name="readyz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("login/", auth.LoginView.as_view(template_name="login.html"), name="login"),
    path("logout/", auth.LogoutView.as_view(), name="logout"),
    path("favicon.ico", views.favicon),
    path("admin/", admin.site.urls),
    path("api/v1/", include(api.urlpatterns)),
    path("", include("scheduling.urls")),
    path("", include("jobs.urls")),
]
