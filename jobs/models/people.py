"""Teams, roles, quotas, sign-in identities and API tokens."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime
from typing import Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models
from django.db.models.functions import Now

from jobs.core.lifecycle import JobKind

SLUG = RegexValidator(r"^[a-z0-9][a-z0-9-]{0,39}$", "Use lowercase letters, digits and dashes, at most 40.")


class TeamRole(models.TextChoices):
    """Roles in ascending order; each includes the rights of the previous ones."""

    VIEWER = "viewer"
    RESEARCHER = "researcher"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        return ROLE_RANKS[self]

    @classmethod
    def roles_at_least(cls, role: str) -> list[str]:
        return cls.values[cls.values.index(role) :]


ROLE_RANKS = {
    role: rank for rank, role in enumerate(TeamRole)
}  # precomputed, because permission checks of long lists use it twice per job


class TeamQuerySet(models.QuerySet["Team"]):
    def where(self, user, role: str = TeamRole.VIEWER) -> Self:
        """Return the teams in which the user has at least this role. A superuser has every role in every team."""
        if user.is_superuser:
            return self
        return self.filter(memberships__user=user, memberships__role__in=TeamRole.roles_at_least(role))


class Team(models.Model):
    name = models.CharField(max_length=40, unique=True, validators=[SLUG])
    title = models.CharField(max_length=120, blank=True)
    members = models.ManyToManyField(settings.AUTH_USER_MODEL, through="Membership", related_name="teams")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = TeamQuerySet.as_manager()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=TeamRole, default=TeamRole.RESEARCHER)

    class Meta:
        ordering = ["team", "user"]
        constraints = [
            models.UniqueConstraint(fields=["team", "user"], name="one_role_per_team"),
            models.CheckConstraint(condition=models.Q(role__in=TeamRole.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} in {self.team}"


class Quota(models.Model):
    """How many GPUs of a cluster a team owns, of one model or of all, for one kind of job or for all."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="quotas")
    cluster = models.ForeignKey("jobs.Cluster", on_delete=models.CASCADE, related_name="quotas")
    kind = models.CharField(
        max_length=12, choices=[(k.value, k.value) for k in JobKind], blank=True, help_text="Empty: all kinds of jobs."
    )
    gpu_model = models.CharField(
        "GPU model",
        max_length=40,
        blank=True,
        default="",
        db_default="",
        help_text="Limits GPUs of this model, beside a quota for all models. Empty: all models.",
    )
    gpus = models.PositiveIntegerField(help_text="Maximum number of GPUs that non-preemptible jobs may hold together.")

    class Meta:
        ordering = ["cluster", "team", "kind", "gpu_model"]
        constraints = [
            models.UniqueConstraint(fields=["team", "cluster", "kind", "gpu_model"], name="one_quota_per_model")
        ]

    def __str__(self) -> str:
        return f"{self.team} on {self.cluster}: {self.text}"

    @property
    def text(self) -> str:
        """Such as "8 h100 GPUs for evaluation"."""
        gpus = f"{self.gpu_model} GPUs" if self.gpu_model else "GPUs"
        return f"{self.gpus} {gpus} for {self.kind or 'everything'}"

    def clean(self) -> None:
        """Reject a model that no node of the cluster has, which is most likely a typing error."""
        if not self.gpu_model or not self.cluster_id:
            return
        if not self.cluster.nodes.filter(gpu_model=self.gpu_model).exists():
            raise ValidationError({"gpu_model": f"No node of {self.cluster} has {self.gpu_model[:40]!r}."})


class TokenScope(models.TextChoices):
    """Scopes in ascending order; each includes the rights of the previous ones."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    ADMIN = "admin"

    def covers(self, required: str) -> bool:
        return TokenScope.values.index(self) >= TokenScope.values.index(required)


class Identity(models.Model):
    """A user at an identity provider. A name at the provider may be reassigned to another user; a subject may not."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identities")
    issuer = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "identities"
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="one_user_per_identity")]

    def __str__(self) -> str:
        return f"{self.subject} of {self.issuer}"


class TokenQuerySet(models.QuerySet["Token"]):
    def usable(self, now: datetime) -> Self:
        alive = models.Q(expires_at__isnull=True) | models.Q(expires_at__gt=now)
        # A deactivated user loses all tokens at once
        return self.filter(alive, revoked_at__isnull=True, user__is_active=True)


class Token(models.Model):
    """A bearer token. Only its hash is stored. A token has 32 random bytes, so it cannot be guessed and needs no slow
    hash."""

    MARK = "acme_"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="acme_tokens")
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=80)
    scope = models.CharField(max_length=10, choices=TokenScope, default=TokenScope.READ)
    # Shown in lists and events, so that users recognize a token without its secret
    prefix = models.CharField(max_length=12, editable=False)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    networks = ArrayField(
        models.CharField(max_length=43), default=list, blank=True, help_text="Client networks (CIDR); empty: any."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True)

    objects = TokenQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=models.Q(scope__in=TokenScope.values), name="token_scope_known")
        ]

    def __str__(self) -> str:
        return f"{self.prefix}… {self.name}"

    def is_usable(self, now: datetime) -> bool:
        """Return the condition of `TokenQuerySet.usable` for this row."""
        alive = self.expires_at is None or self.expires_at > now
        return alive and self.revoked_at is None and self.user.is_active

    @classmethod
    def make(cls, **fields: object) -> tuple[Token, str]:
        """Return an unsaved token and its secret. The secret cannot be read again later."""
        secret = cls.MARK + secrets.token_urlsafe(32)
        return cls(prefix=secret[:12], digest=cls.secret_digest(secret), **fields), secret

    @staticmethod
    def secret_digest(secret: str) -> str:
        return hashlib.sha256(secret.encode()).hexdigest()
