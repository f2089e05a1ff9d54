from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.providers.urls import provider_from_url

__all__ = ["Provider", "provider_from_url"]
