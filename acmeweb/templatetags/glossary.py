"""Links from the terms on pages to the glossary."""

from __future__ import annotations

from django import template
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from acmeweb.glossary import TERMS

register = template.Library()

TERMS_BY_NAME = {term.name: term for term in TERMS}
# Names of policy settings that are explained by a term
SETTING_TERMS = {"placement": "Placement", "backfilling": "Backfill"}


@register.simple_tag
def setting_term(name: str) -> SafeString | str:
    return term(SETTING_TERMS[name]) if name in SETTING_TERMS else ""


@register.simple_tag
def term(name: str) -> SafeString:
    """A "?" that shows the definition of a term as its tooltip and leads to the glossary."""
    found = TERMS_BY_NAME[name]
    return format_html(
        '<a class="term" href="{}#{}" title="{}" aria-label="What is {}?">?</a>',
        reverse("glossary"),
        found.anchor,
        found.definition,
        found.name,
    )
