"""Links through an MQTT broker: TLS handshakes, reliable streams of sealed packets, presence.

The broker is trusted only to deliver packets.
"""
