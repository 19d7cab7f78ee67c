from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from acmeweb import api, broken, login, metrics, oidc, search, views

admin.site.login_form = login.AdminLoginForm

urlpatterns = [
    path("", views.home, name="home"),
    path("search/", search.search, name="search"),
    path("healthz", views.healthz, name="healthz"),
    path("readyz", views.readyz, name="readyz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("login/", login.Login.as_view(), name="login"),
    path("login/oidc/", oidc.begin, name="oidc"),
    path("login/oidc/back/", oidc.back, name="oidc-back"),
    path("account/password/", login.ChangePassword.as_view(), name="password"),
    path("logout/", oidc.leave, name="logout"),
    path("favicon.ico", views.favicon),
    # The admin's own page would neither throttle nor offer to revoke tokens
    path("admin/password_change/", RedirectView.as_view(pattern_name="password")),
    path("admin/", admin.site.urls),
    path("api/v1/", include(api.urlpatterns)),
    path("", include("failures.urls")),
    path("", include("scheduling.urls")),
    path("", include("jobs.urls")),
]

handler500 = broken.answer
