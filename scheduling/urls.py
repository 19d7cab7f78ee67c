from django.urls import path, re_path

from scheduling import campaign_views, queue_views, replay_views, views

urlpatterns = [
    path("queue/", queue_views.queue, name="queue"),
    path("queue/<slug:cluster>/policy/", queue_views.policy, name="policy"),
    path("jobs/<slug:public_id>/why/", views.why_it_waits, name="why"),
    path("evaluations/", campaign_views.campaigns, name="campaigns"),
    path("evaluations/<slug:public_id>/", campaign_views.campaign, name="campaign"),
    path("evaluations/<slug:public_id>/cancel/", campaign_views.cancel, name="campaign-cancel"),
    path("evaluations/<slug:public_id>/retry/", campaign_views.retry, name="campaign-retry"),
    path("what-if/", replay_views.replays, name="replays"),
    path("what-if/compare/", replay_views.compare, name="compare"),
    re_path(r"^what-if/export\.(?P<form>json|csv)$", replay_views.export, name="replay-export"),
    path("what-if/<slug:public_id>/", replay_views.replay, name="replay"),
    path("what-if/<slug:public_id>/cancel/", replay_views.cancel, name="replay-cancel"),
]
