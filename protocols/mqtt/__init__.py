"""Links through an MQTT broker: key exchange, reliable streams of encrypted frames, presence.

The broker is not trusted with more than delivery.
"""
