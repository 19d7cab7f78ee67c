from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from acmeweb import api_root, error_pages, metrics
from acmeweb.auth import login, oidc
from acmeweb.pages import glossary, health, home, search, start

admin.site.login_form = login.AdminLoginForm

urlpatterns = [
    path("", home.home_page, name="home"),
    path("start/dismiss/", start.dismiss_start, name="start-dismiss"),
    path("search/", search.search_page, name="search"),
    path("glossary/", glossary.glossary_page, name="glossary"),
    path("health/", health.health_page, name="health"),
    path("health/late/", health.late_fragment, name="health-late"),
    path("healthz", home.healthz, name="healthz"),
    path("readyz", home.readyz, name="readyz"),
    path("metrics", metrics.metrics_page, name="metrics"),
    path("login/", login.AcmeLoginView.as_view(), name="login"),
    path("login/oidc/", oidc.begin_sign_in, name="oidc"),
    path("login/oidc/back/", oidc.finish_sign_in, name="oidc-back"),
    path("account/password/", login.ChangePasswordView.as_view(), name="password"),
    path("logout/", oidc.sign_out, name="logout"),
    path("favicon.ico", home.favicon),
    # Django's own page would neither throttle nor offer to revoke tokens
    path("admin/password_change/", RedirectView.as_view(pattern_name="password")),
    path("admin/", admin.site.urls),
    path("api/v1/", include(api_root.urlpatterns)),
    path("", include("failures.urls")),
    path("", include("scheduling.urls")),
    path("", include("scheduling.simulation.urls")),
    path("", include("jobs.urls")),
]

handler500 = error_pages.server_error
